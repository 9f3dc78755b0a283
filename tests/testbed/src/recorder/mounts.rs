//! Who has mounted and unmounted what below a directory, as the kernel tells it (Linux 6.15).
//!
//! It tells what changes in this mount namespace, and which process has changed it. That process may have a namespace of its
//! own, as the test's kubelet has: what it mounts on a shared mount comes here as well, under its own process id. Not told is
//! what becomes of mounts that are not seen here, such as those of containers, what failed, and a mount that is gone before
//! it can be asked where it is, as those are that runtimes make for a moment.

mod events;
mod point;

use std::{
    collections::HashMap,
    io::{PipeWriter, pipe},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use anyhow::{Result, anyhow};
use jiff::Timestamp;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use procfs::process::Process;

use events::{Event, Events};

/// What happened to a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It came.
    Mount,
    /// It went.
    Unmount,
}

/// Who did it. What has ended since has neither name nor parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// Its process.
    pub pid: i32,
    /// Such as `umount`.
    pub name: Option<String>,
    /// The process that has started it, or has taken it over.
    pub parent: Option<i32>,
}

/// A mount that came or went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounting {
    /// Which of the two.
    pub change: Change,
    /// Where it is, or was.
    pub point: PathBuf,
    /// By whom.
    pub by: Actor,
    /// When it was heard of, at once after it was done.
    pub at: Timestamp,
}

/// Listens until it is dropped.
#[derive(Debug)]
pub struct MountRecorder {
    written: Arc<Mutex<Written>>,
    stop: Option<PipeWriter>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Written {
    /// In the order in which it happened.
    heard: Vec<Mounting>,
    /// Why it does not listen any more.
    broke: Option<String>,
}

/// Turns events into what is heard.
struct Listener {
    below: PathBuf,
    /// Where the mounts below that directory are, by the kernel's numbers, which it uses only once.
    points: HashMap<u64, PathBuf>,
    written: Arc<Mutex<Written>>,
}

// === impl MountRecorder ===

impl MountRecorder {
    /// Listens to what happens below this directory from now on.
    pub fn start(below: &Path) -> Result<Self> {
        let events = Events::of_this_namespace()?;
        let (stopped, stop) = pipe()?;
        let written = Arc::<Mutex<Written>>::default();
        let mut listener = Listener {
            below: below.to_owned(),
            points: HashMap::new(),
            written: Arc::clone(&written),
        };
        // A thread of its own: how soon it hears is how exact its times are.
        let thread = thread::spawn(move || {
            loop {
                let mut either = [&events.as_fd(), &stopped.as_fd()].map(|fd| PollFd::new(*fd, PollFlags::POLLIN));
                let heard = match poll(&mut either, PollTimeout::NONE) {
                    Ok(_) if either[1].any() != Some(false) => return,
                    Ok(_) => events.read(),
                    Err(error) => Err(error.into()),
                };
                match heard {
                    Ok(heard) => listener.hear(&heard, Timestamp::now()),
                    Err(error) => {
                        lock(&listener.written).broke = Some(format!("{error:#}"));
                        return;
                    }
                }
            }
        });
        Ok(Self {
            written,
            stop: Some(stop),
            listener: Some(thread),
        })
    }

    /// All that was heard so far; an error if some of it was not.
    pub fn heard(&self) -> Result<Vec<Mounting>> {
        let written = lock(&self.written);
        match &written.broke {
            Some(error) => Err(anyhow!("mounts are not recorded any more: {error}")),
            None => Ok(written.heard.clone()),
        }
    }
}

impl Drop for MountRecorder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(listener) = self.listener.take() {
            // It has panicked at worst, and has said so.
            listener.join().ok();
        }
    }
}

fn lock(written: &Mutex<Written>) -> MutexGuard<'_, Written> {
    written.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Listener ===

impl Listener {
    fn hear(&mut self, events: &[Event], at: Timestamp) {
        // Whoever has done it may end any moment: ask first who that is.
        let actors: Vec<_> = events.iter().map(|event| Actor::of(event.pid)).collect();
        for (event, by) in events.iter().zip(actors) {
            let point = match event.change {
                Change::Mount => point::of(event.mount).filter(|point| point.starts_with(&self.below)),
                Change::Unmount => self.points.remove(&event.mount),
            };
            if let Some(point) = point {
                if event.change == Change::Mount {
                    self.points.insert(event.mount, point.clone());
                }
                lock(&self.written).heard.push(Mounting {
                    change: event.change,
                    point,
                    by,
                    at,
                });
            }
        }
    }
}

// === impl Actor ===

impl Actor {
    fn of(pid: i32) -> Self {
        let stat = Process::new(pid).and_then(|process| process.stat()).ok();
        Self {
            pid,
            parent: stat.as_ref().map(|stat| stat.ppid),
            name: stat.map(|stat| stat.comm),
        }
    }
}
