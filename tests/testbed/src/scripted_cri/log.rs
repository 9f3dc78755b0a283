//! Received calls with their times on the virtual clock, and their answers.

use std::fmt;
use std::time::Duration;

use super::call::Seen;

/// One call. Times count from the start of the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When it was received.
    pub at: Duration,
    pub call: Logged,
    /// When it was answered and how; `None` while it is in flight, and if it was canceled.
    pub answered: Option<(Duration, String)>,
}

/// A call of either kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Logged {
    /// A read-only call and its target.
    Read(&'static str, String),
    /// A changing call.
    Effect(Seen),
}

/// All calls in order.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) entries: Vec<Entry>,
}

impl Log {
    /// Records a call and returns its index, for the answer.
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
