//! Whether the machine stood still: what is late then is late by no fault of the agent's.

use std::{
    fs::File,
    io::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::time::Instant;

/// A write to the disk every so often.
const BEAT: Duration = Duration::from_millis(500);
/// One takes milliseconds, and longer than this only where nobody else gets on, either.
const STILL: Duration = Duration::from_secs(3);

/// Something took longer than it may.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Late(pub String);

/// Beats until it is dropped.
#[derive(Clone)]
pub struct Pulse(Arc<Mutex<Beats>>);

struct Beats {
    begun: Instant,
    /// Beats that took long: their end, and how long they took.
    missed: Vec<(Instant, Duration)>,
}

// === impl Pulse ===

impl Pulse {
    pub fn start() -> Result<Self> {
        let mut file = tempfile::tempfile().context("make a file to write to")?;
        let beats = Arc::new(Mutex::new(Beats {
            begun: Instant::now(),
            missed: Vec::new(),
        }));
        let weak = Arc::downgrade(&beats);
        thread::spawn(move || {
            while let Some(beats) = weak.upgrade() {
                lock(&beats).begin();
                drop(beats);
                // A disk that fails is for the runs to tell.
                beat(&mut file).ok();
                thread::sleep(BEAT);
                if let Some(beats) = weak.upgrade() {
                    lock(&beats).end();
                }
            }
        });
        Ok(Self(beats))
    }

    /// The longest time since then in which the machine stood still, if it did.
    pub fn stood_still(&self, since: Instant) -> Option<Duration> {
        let beats = lock(&self.0);
        let missed = beats.missed.iter().filter(|(end, _)| *end > since);
        let now = beats.now();
        missed.map(|(_, took)| *took).chain(now).max()
    }
}

fn beat(file: &mut File) -> std::io::Result<()> {
    file.write_all(b".")?;
    file.sync_all()
}

fn lock(beats: &Mutex<Beats>) -> MutexGuard<'_, Beats> {
    beats.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Beats ===

impl Beats {
    fn begin(&mut self) {
        self.begun = Instant::now();
    }

    fn end(&mut self) {
        self.missed.extend(self.now().map(|took| (Instant::now(), took)));
        self.begin();
    }

    /// How long this beat takes, if that is long.
    fn now(&self) -> Option<Duration> {
        let took = self.begun.elapsed();
        (took > STILL).then_some(took)
    }
}
