//! The kernel's connector for process events (Linux: `Documentation/driver-api/connector.rst`, `drivers/connector/cn_proc.c`).

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd, RawFd},
    process,
};

use nix::{
    errno::Errno,
    libc::{self, CN_IDX_PROC, PROC_CN_MCAST_IGNORE, PROC_CN_MCAST_LISTEN, PROC_EVENT_EXEC, PROC_EVENT_NONE},
    sys::socket::{MsgFlags, NetlinkAddr, bind, recvfrom, send},
};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::io::{Interest, unix::AsyncFd};

use super::message::{self, Message};
use crate::node::{descriptor, fault::errno};

/// Pids in one batch at most.
const MAX_BATCH: usize = 256;
/// Messages that may come before the answer to a request.
const MAX_BEFORE_ANSWER: usize = 1024;

/// Which processes have executed a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Execs {
    /// The processes with these pids. Some may have exited.
    Pids(Vec<i32>),
    /// Any: the kernel had to drop events.
    Lost,
}

/// Why there are no events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The node has no netlink socket for the connector.
    #[error("no netlink socket for process events: {}", .0.desc())]
    Socket(Errno),
    /// The kernel refuses them.
    #[error("the kernel refuses process events: {}; they need CAP_NET_ADMIN in the host's network namespace", .0.desc())]
    Refused(Errno),
    /// The kernel does not answer.
    #[error(
        "the kernel has no process events for this process: they need CONFIG_PROC_EVENTS, and the host's PID and user namespace"
    )]
    NoAnswer,
}

/// A subscription to the programs that processes of the node execute.
#[derive(Debug)]
pub(super) struct Connector {
    socket: AsyncFd<OwnedFd>,
}

// === impl Connector ===

impl Connector {
    /// Subscribes to the events, and makes sure that the kernel sends them.
    pub(super) fn subscribe() -> Result<Self, Unavailable> {
        let failed = |error: io::Error| Unavailable::Socket(errno(&error));
        let (domain, protocol) = (Domain::from(libc::AF_NETLINK), Protocol::from(libc::NETLINK_CONNECTOR));
        let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(protocol)).map_err(failed)?;
        // Before the first message: forks and exits, which are most of the events, do not wake the agent.
        socket.attach_filter(&filter()).map_err(failed)?;
        // The first group is the first bit.
        let group = NetlinkAddr::new(0, 1 << (CN_IDX_PROC - 1));
        bind(socket.as_raw_fd(), &group).map_err(Unavailable::Refused)?;
        request(socket.as_raw_fd(), PROC_CN_MCAST_LISTEN).map_err(Unavailable::Refused)?;
        wait_for_answer(socket.as_raw_fd())?;
        let socket = descriptor::watch(socket, Interest::READABLE).map_err(failed)?;
        Ok(Self { socket })
    }

    /// Waits for events. It may be dropped and called again without a loss.
    ///
    /// # Errors
    /// When the kernel sends no more.
    pub(super) async fn receive(&mut self) -> io::Result<Execs> {
        let mut pids = Vec::new();
        while pids.is_empty() {
            let mut ready = self.socket.readable().await?;
            while pids.len() < MAX_BATCH {
                match receive_one(ready.get_inner().as_raw_fd()) {
                    Ok(Some(Message::Exec { pid })) => pids.push(pid),
                    Ok(_) => {}
                    Err(Errno::EAGAIN) => {
                        ready.clear_ready();
                        break;
                    }
                    Err(Errno::ENOBUFS) => return Ok(Execs::Lost),
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(Execs::Pids(pids))
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        // Linux before 6.6 counts its listeners by their requests, and makes events as long as it has any.
        request(self.socket.get_ref().as_raw_fd(), PROC_CN_MCAST_IGNORE).ok();
    }
}

/// Lets only answers and executed programs through (classic BPF, Linux: `Documentation/networking/filter.rst`).
fn filter() -> [SockFilter; 5] {
    // BPF_LD | BPF_W | BPF_ABS; BPF_JMP | BPF_JEQ | BPF_K; BPF_RET | BPF_K.
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    // The filter takes each word as big-endian.
    let loaded = |word: u32| u32::from_be_bytes(word.to_ne_bytes());
    [
        SockFilter::new(LOAD_WORD, 0, 0, message::WHAT),
        SockFilter::new(JUMP_IF_EQUAL, 2, 0, loaded(PROC_EVENT_EXEC)),
        SockFilter::new(JUMP_IF_EQUAL, 1, 0, loaded(PROC_EVENT_NONE)),
        // How many bytes of the message are kept.
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ]
}

fn request(socket: RawFd, operation: u32) -> nix::Result<()> {
    send(socket, &message::request(operation, process::id()), MsgFlags::empty()).map(drop)
}

/// Reads the kernel's answer to the request. The kernel queues it before the send returns: `EAGAIN` means that there is none.
fn wait_for_answer(socket: RawFd) -> Result<(), Unavailable> {
    for _ in 0..MAX_BEFORE_ANSWER {
        match receive_one(socket) {
            Ok(Some(Message::Answer { number, result })) if number == process::id() => {
                return result.map_err(Unavailable::Refused);
            }
            Ok(_) | Err(Errno::ENOBUFS) => {}
            Err(Errno::EAGAIN) => break,
            Err(errno) => return Err(Unavailable::Refused(errno)),
        }
    }
    Err(Unavailable::NoAnswer)
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
