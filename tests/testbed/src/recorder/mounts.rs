//! Records mounts and unmounts below a directory with their process, from fanotify (Linux 6.15).
//!
//! It covers this mount namespace, including changes that propagate from other ones, such as the test kubelet's. It does
//! not see mounts of other namespaces, such as those of containers, failed calls, and mounts that vanish before their
//! path can be read, such as temporary ones of runtimes.

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

/// Kind of the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Mount,
    Unmount,
}

/// The process. Name and parent are unknown if it has exited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// Its process.
    pub pid: i32,
    /// Such as `umount`.
    pub name: Option<String>,
    pub parent: Option<i32>,
}

/// A mount or unmount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounting {
    /// Which of the two.
    pub change: Change,
    pub point: PathBuf,
    /// Its process.
    pub by: Actor,
    /// When it was received; on a busy machine up to seconds after it happened.
    pub at: Timestamp,
}

/// Records until it is dropped.
#[derive(Debug)]
pub struct MountRecorder {
    written: Arc<Mutex<Written>>,
    stop: Option<PipeWriter>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Written {
    /// In order.
    heard: Vec<Mounting>,
    /// Why recording has stopped.
    broke: Option<String>,
}

/// Converts events to changes.
struct Listener {
    below: PathBuf,
    /// Mount points below the directory, by the kernel's unique mount IDs.
    points: HashMap<u64, PathBuf>,
    written: Arc<Mutex<Written>>,
}

impl MountRecorder {
    /// Starts recording below this directory.
    pub fn start(below: &Path) -> Result<Self> {
        let events = Events::of_this_namespace()?;
        let (stopped, stop) = pipe()?;
        let written = Arc::<Mutex<Written>>::default();
        let mut listener = Listener {
            below: below.to_owned(),
            points: HashMap::new(),
            written: Arc::clone(&written),
        };
        // A separate thread, for exact times.
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

    /// All changes so far; an error if some were missed.
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

impl Listener {
    fn hear(&mut self, events: &[Event], at: Timestamp) {
        // Its process may exit at any moment, so that is read first.
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
