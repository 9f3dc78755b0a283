//! What goes wrong, and at which side of a step.

use std::{fmt, time::Duration};

use super::point::{Point, Step, When};

/// The columns of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// SIGKILL before the change.
    KilledBefore,
    /// SIGKILL a few milliseconds after the change was let go: under way, or just done.
    KilledDuring,
    /// SIGKILL after the change, before anything was made of its outcome.
    KilledAfter,
    /// The runtime is killed before the change, which goes on, and comes back by and by.
    RuntimeRestarts,
    /// The API server refuses the node's connections for a while.
    ServerAway,
    /// SIGTERM, with little time to stop.
    Terminated,
    /// SIGKILL, and the pod's object is removed by force while no agent runs.
    Orphaned,
    /// The object is removed by force and another pod takes its name, before the change, which goes on.
    Replaced,
}

/// A fault at a step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Strike {
    pub step: Step,
    pub fault: Fault,
    /// How long the agent lives on where it is killed during a change.
    pub moment: Duration,
}

// === impl Fault ===

impl Fault {
    pub const ALL: [Self; 8] = [
        Self::KilledBefore,
        Self::KilledDuring,
        Self::KilledAfter,
        Self::RuntimeRestarts,
        Self::ServerAway,
        Self::Terminated,
        Self::Orphaned,
        Self::Replaced,
    ];

    /// Whether the object is taken away by it: then nobody is told how the pod ended, and nobody waits for it.
    pub fn takes_the_object(self) -> bool {
        matches!(self, Self::Orphaned | Self::Replaced)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::KilledBefore => "killed before",
            Self::KilledDuring => "killed during",
            Self::KilledAfter => "killed after",
            Self::RuntimeRestarts => "runtime restarts",
            Self::ServerAway => "API server away",
            Self::Terminated => "SIGTERM",
            Self::Orphaned => "killed, orphaned",
            Self::Replaced => "replaced",
        })
    }
}

// === impl Strike ===

impl Strike {
    /// The point that it waits for.
    pub fn point(&self) -> Point {
        let when = match self.fault {
            Fault::KilledAfter => When::After,
            _ => When::Before,
        };
        Point {
            when,
            step: self.step.clone(),
        }
    }
}

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.fault)
    }
}
