//! Captures the agent's log.

use std::{
    io,
    sync::{Arc, Mutex, OnceLock},
};

use tracing::{Dispatch, Level, subscriber::DefaultGuard};

/// With a single subscriber, tracing caches the interest of the first thread for all threads: another test would silence
/// this one.
static SECOND_SUBSCRIBER: OnceLock<Dispatch> = OnceLock::new();

/// Captures the log of this thread, the only one of a test's agent.
pub struct Log {
    captured: Captured,
    _until_dropped: DefaultGuard,
}

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

// === impl Log ===

impl Log {
    pub fn new() -> Self {
        SECOND_SUBSCRIBER.get_or_init(|| Dispatch::new(tracing_subscriber::fmt().with_writer(io::sink).finish()));
        let captured = Captured::default();
        let to = captured.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::INFO)
            .with_ansi(false)
            .with_writer(move || to.clone())
            .finish();
        Self {
            captured,
            _until_dropped: tracing::subscriber::set_default(subscriber),
        }
    }

    /// Lines that contain these words.
    pub fn lines(&self, words: &str) -> Vec<String> {
        let text = String::from_utf8(self.captured.0.lock().unwrap().clone()).unwrap();
        text.lines()
            .filter(|line| line.contains(words))
            .map(str::to_owned)
            .collect()
    }
}

// === impl Taken ===

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
