//! The kernel's connector for process events (Linux: `Documentation/driver-api/connector.rst`, `drivers/connector/cn_proc.c`).

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd, RawFd},
    process,
    time::Duration,
};

use nix::{
    errno::Errno,
    libc::{
        self, CN_IDX_PROC, PROC_CN_MCAST_IGNORE, PROC_CN_MCAST_LISTEN, PROC_EVENT_COMM, PROC_EVENT_EXEC,
        PROC_EVENT_NONE,
    },
    sys::{
        prctl,
        socket::{MsgFlags, NetlinkAddr, bind, recvfrom, send},
    },
};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, sleep_until},
};

use super::message::{self, Message};
use crate::{node::descriptor, words::io_error};

/// Pids in one batch at most.
const MAX_BATCH: usize = 256;
/// How often it is proven that events arrive. Before Linux 6.6 another listener that ends its subscription may end them for all.
const PROOF_INTERVAL: Duration = Duration::from_secs(1);
/// Messages that may come before the answer to a request.
const MAX_BEFORE_ANSWER: usize = 1024;

/// Which processes have executed a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Execs {
    /// The processes with these pids. Some may have exited.
    Pids(Vec<i32>),
    /// Any: the kernel had to drop events, or has sent none.
    Lost,
}

/// A subscription to the programs that processes of the node execute.
#[derive(Debug)]
pub(super) struct Connector {
    socket: AsyncFd<OwnedFd>,
    next_proof: Instant,
}

// === impl Connector ===

impl Connector {
    /// Subscribes to the events, and makes sure that the kernel sends them.
    ///
    /// # Errors
    /// Why there are none.
    pub(super) fn subscribe() -> io::Result<Self> {
        let failed = |error| io::Error::other(format!("no netlink socket for process events: {}", io_error(&error)));
        let (domain, protocol) = (Domain::from(libc::AF_NETLINK), Protocol::from(libc::NETLINK_CONNECTOR));
        let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(protocol)).map_err(failed)?;
        // Before the first message: forks and exits, which are most of the events, do not wake the agent.
        socket.attach_filter(&filter()).map_err(failed)?;
        // The first group is the first bit.
        let group = NetlinkAddr::new(0, 1 << (CN_IDX_PROC - 1));
        bind(socket.as_raw_fd(), &group).map_err(refused)?;
        request(socket.as_raw_fd(), PROC_CN_MCAST_LISTEN).map_err(refused)?;
        wait_for_answer(socket.as_raw_fd())?;
        let socket = descriptor::watch(socket, Interest::READABLE).map_err(failed)?;
        Ok(Self {
            socket,
            next_proof: Instant::now() + PROOF_INTERVAL,
        })
    }

    /// Waits for events, and proves that they arrive. It may be dropped and called again without a loss.
    ///
    /// # Errors
    /// When the kernel sends no more.
    pub(super) async fn receive(&mut self) -> io::Result<Execs> {
        loop {
            let received = tokio::select! {
                biased;
                () = sleep_until(self.next_proof) => {
                    self.next_proof = Instant::now() + PROOF_INTERVAL;
                    match self.read()? {
                        received if received.is_empty && received.pids.is_empty() => self.prove()?,
                        received => received.into(),
                    }
                }
                ready = self.socket.readable() => {
                    let mut ready = ready?;
                    let received = self.read()?;
                    if received.is_empty {
                        ready.clear_ready();
                    }
                    received.into()
                }
            };
            if received != Execs::Pids(Vec::new()) {
                return Ok(received);
            }
        }
    }

    /// Causes an event, and requests events again if it does not arrive. The kernel queues an event before the call returns that
    /// causes it.
    fn prove(&self) -> io::Result<Execs> {
        prctl::set_name(&prctl::get_name()?)?;
        let received = self.read()?;
        if received.is_proven || received.is_lost || !received.pids.is_empty() {
            return Ok(received.into());
        }
        tracing::warn!(
            "The kernel has reported no process starts, as after another listener has ended them for all; requesting them again"
        );
        let socket = self.socket.get_ref().as_raw_fd();
        request(socket, PROC_CN_MCAST_LISTEN)?;
        wait_for_answer(socket)?;
        Ok(Execs::Lost)
    }

    /// Reads what has arrived, up to a whole batch.
    fn read(&self) -> io::Result<Received> {
        let mut received = Received::default();
        while received.pids.len() < MAX_BATCH {
            match receive_one(self.socket.get_ref().as_raw_fd()) {
                Ok(Some(Message::Exec { pid })) => received.pids.push(pid),
                Ok(Some(Message::Renamed { .. })) => received.is_proven = true,
                Ok(Some(Message::Answer { .. }) | None) => {}
                Err(Errno::EAGAIN) => {
                    received.is_empty = true;
                    break;
                }
                Err(Errno::ENOBUFS) => {
                    received.is_lost = true;
                    break;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(received)
    }
}

/// What was read.
#[derive(Debug, Default)]
struct Received {
    pids: Vec<i32>,
    /// A thread of this process was renamed: events arrive.
    is_proven: bool,
    /// The kernel had to drop events.
    is_lost: bool,
    /// Nothing more has arrived.
    is_empty: bool,
}

impl From<Received> for Execs {
    fn from(received: Received) -> Self {
        match received.is_lost {
            true => Self::Lost,
            false => Self::Pids(received.pids),
        }
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        // Linux before 6.6 counts its listeners by their requests, and makes events as long as it has any.
        request(self.socket.get_ref().as_raw_fd(), PROC_CN_MCAST_IGNORE).ok();
    }
}

/// Lets only answers, executed programs and new names of this process's threads through (classic BPF, Linux:
/// `Documentation/networking/filter.rst`).
fn filter() -> [SockFilter; 8] {
    // BPF_LD | BPF_W | BPF_ABS; BPF_JMP | BPF_JEQ | BPF_K; BPF_RET | BPF_K.
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    // The filter takes each word as big-endian.
    let loaded = |word: u32| u32::from_be_bytes(word.to_ne_bytes());
    [
        SockFilter::new(LOAD_WORD, 0, 0, message::WHAT),
        SockFilter::new(JUMP_IF_EQUAL, 5, 0, loaded(PROC_EVENT_EXEC)),
        SockFilter::new(JUMP_IF_EQUAL, 4, 0, loaded(PROC_EVENT_NONE)),
        SockFilter::new(JUMP_IF_EQUAL, 0, 2, loaded(PROC_EVENT_COMM)),
        SockFilter::new(LOAD_WORD, 0, 0, message::RENAMED),
        SockFilter::new(JUMP_IF_EQUAL, 1, 0, loaded(process::id())),
        // How many bytes of the message are kept.
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ]
}

fn request(socket: RawFd, operation: u32) -> nix::Result<()> {
    send(socket, &message::request(operation, process::id()), MsgFlags::empty()).map(drop)
}

fn refused(errno: Errno) -> io::Error {
    io::Error::other(format!(
        "the kernel refuses process events: {}; they need CAP_NET_ADMIN in the host's network namespace",
        errno.desc()
    ))
}

/// Reads the kernel's answer to the request. The kernel queues it before the send returns: `EAGAIN` means that there is none.
fn wait_for_answer(socket: RawFd) -> io::Result<()> {
    for _ in 0..MAX_BEFORE_ANSWER {
        match receive_one(socket) {
            Ok(Some(Message::Answer { number, result })) if number == process::id() => return result.map_err(refused),
            Ok(_) | Err(Errno::ENOBUFS) => {}
            Err(Errno::EAGAIN) => break,
            Err(errno) => return Err(refused(errno)),
        }
    }
    Err(io::Error::other(
        "the kernel has no process events for this process: they need CONFIG_PROC_EVENTS, and the host's PID and user namespace",
    ))
}

/// The next message; `None` if it is of no interest, or not from the kernel.
fn receive_one(socket: RawFd) -> nix::Result<Option<Message>> {
    let mut bytes = [0; 128];
    let (length, sender) = loop {
        match recvfrom::<NetlinkAddr>(socket, &mut bytes) {
            Err(Errno::EINTR) => {}
            received => break received?,
        }
    };
    let is_from_kernel = sender.is_some_and(|sender| sender.pid() == 0);
    Ok(message::parse(&bytes[..length]).filter(|_| is_from_kernel))
}
