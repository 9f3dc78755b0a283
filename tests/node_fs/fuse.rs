//! A FUSE file system whose daemon stops answering when a test wants it.

use std::{
    fs::File,
    io::{ErrorKind, Read as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::fs::OpenOptionsExt as _,
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    mount::{MsFlags, mount},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const INIT: u32 = 26;
const ROOT: u64 = 1;
const DIRECTORY: u32 = 0o040_755;

/// A daemon that serves empty directories until it is silenced.
///
/// The connection is closed on drop: processes that wait for an answer could not be killed otherwise.
pub struct Daemon {
    silent: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    serving: Option<JoinHandle<()>>,
}

impl Daemon {
    pub fn mounted_on(path: &Path) -> Self {
        let device = mounted(path);
        let (silent, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (seen, stopped) = (Arc::clone(&silent), Arc::clone(&stop));
        let serving = Some(thread::spawn(move || serve(device, &seen, &stopped)));
        Self { silent, stop, serving }
    }

    /// From now on it reads requests and does not answer.
    pub fn stop_answering(&self) {
        self.silent.store(true, Ordering::SeqCst);
    }

    /// Whether the kernel has closed the connection.
    pub fn is_disconnected(&self) -> bool {
        self.serving.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.serving.take().map(JoinHandle::join);
    }
}

/// Mounts one whose daemon is dead.
pub fn dead_on(path: &Path) {
    drop(mounted(path));
}

fn mounted(path: &Path) -> File {
    let mut device = File::options();
    let device = device.read(true).write(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let device = device.open("/dev/fuse").unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let flags = MsFlags::empty();
    mount(Some("nas:/share"), path, Some("fuse"), flags, Some(options.as_str())).unwrap();
    device
}

fn serve(mut device: File, silent: &AtomicBool, stop: &AtomicBool) {
    let mut request = vec![0; 1 << 17];
    while !stop.load(Ordering::SeqCst) {
        poll(
            &mut [PollFd::new(device.as_fd(), PollFlags::POLLIN)],
            PollTimeout::from(10_u8),
        )
        .unwrap();
        let length = match device.read(&mut request) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            // The connection is closed.
            Err(_) => break,
        };
        let request = &request[..length];
        let opcode = u32::from_ne_bytes(request[4..8].try_into().unwrap());
        if opcode != INIT && silent.load(Ordering::SeqCst) {
            continue;
        }
        let body = match opcode {
            // Protocol 7.31 without options.
            INIT => Ok([7_u32, 31, 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0].to_vec()),
            LOOKUP => Ok([
                // An entry that must not be cached: each lookup asks the daemon.
                words(2),
                words(0),
                words(0),
                words(0),
                vec![0, 0],
                attributes(2),
            ]
            .concat()),
            GETATTR => Ok([words(0), vec![0, 0], attributes(ROOT)].concat()),
            _ => Err(-(Errno::ENOSYS as i32)),
        };
        let unique = &request[8..16];
        let (error, body) = body.map_or_else(|error| (error, Vec::new()), |body| (0, body));
        let body: Vec<u8> = body.into_iter().flat_map(u32::to_ne_bytes).collect();
        let length = u32::try_from(16 + body.len()).unwrap();
        let answer = [&length.to_ne_bytes(), &error.to_ne_bytes()[..], unique, &body].concat();
        // A canceled request has no answer.
        device.write_all(&answer).ok();
    }
}

fn words(number: u64) -> Vec<u32> {
    #[allow(clippy::cast_possible_truncation, reason = "both halves are kept")]
    let halves = [number as u32, (number >> 32) as u32];
    halves.to_vec()
}

/// Attributes of a directory: ino, size, blocks, three times, three fractions, mode, links, owner, group, device, block
/// size, flags.
fn attributes(inode: u64) -> Vec<u32> {
    let mut all = words(inode);
    all.extend([0; 10]);
    all.extend([0; 3]);
    all.extend([DIRECTORY, 2, 0, 0, 0, 4096, 0]);
    all
}
