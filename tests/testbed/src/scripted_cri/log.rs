//! What came in, when on the virtual clock, and what was answered.

use std::fmt;
use std::time::Duration;

use super::call::Seen;

/// One call. Times count from the beginning of the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When it came.
    pub at: Duration,
    /// What it was.
    pub call: Logged,
    /// When it was answered and with what; `None` while it is not, and for ever if the caller gave up.
    pub answered: Option<(Duration, String)>,
}

/// A call of either kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Logged {
    /// One that only looks: which, and at what.
    Read(&'static str, String),
    /// One that changes something.
    Effect(Seen),
}

/// All calls, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) entries: Vec<Entry>,
}

// === impl Log ===

impl Log {
    /// Notes a call and returns its place, for the answer.
    pub(super) fn came(&mut self, at: Duration, call: Logged) -> usize {
        self.entries.push(Entry {
            at,
            call,
            answered: None,
        });
        self.entries.len() - 1
    }

    pub(super) fn answered(&mut self, place: usize, at: Duration, answer: String) {
        self.entries[place].answered = Some((at, answer));
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entries.iter().try_for_each(|entry| writeln!(f, "  {entry}"))
    }
}

// === impl Entry ===

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3}s ", self.at.as_secs_f64())?;
        match &self.call {
            Logged::Read(name, id) => write!(f, "{name} {id}")?,
            Logged::Effect(seen) => write!(f, "{seen}")?,
        }
        match &self.answered {
            Some((at, answer)) => write!(f, " -> {answer} at {:.3}s", at.as_secs_f64()),
            None => f.write_str(" -> no answer"),
        }
    }
}
