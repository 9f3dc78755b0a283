//! Faults, and the side of a step at which they happen.

use std::{fmt, time::Duration};

use super::point::{Point, Step, When};

/// The columns of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// SIGKILL before the change.
    KilledBefore,
    /// SIGKILL a few milliseconds after the change was allowed: in progress, or just done.
    KilledDuring,
    /// SIGKILL after the change, before its result is used.
    KilledAfter,
    /// The runtime is killed before the change, which continues, and restarts later.
    RuntimeRestarts,
    /// The API server refuses the node's connections for a while.
    ServerDown,
    /// SIGTERM with a short shutdown timeout.
    Terminated,
    /// SIGKILL, and the pod's object is force-deleted while no agent runs.
    Orphaned,
    /// The object is force-deleted and another pod takes its name before the change, which continues.
    Replaced,
}

/// A fault at a step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Strike {
    pub step: Step,
    pub fault: Fault,
    /// How long the agent lives after the start of the change.
    pub moment: Duration,
}

impl Fault {
    pub const ALL: [Self; 8] = [
        Self::KilledBefore,
        Self::KilledDuring,
        Self::KilledAfter,
        Self::RuntimeRestarts,
        Self::ServerDown,
        Self::Terminated,
        Self::Orphaned,
        Self::Replaced,
    ];

    /// Whether the fault deletes the object, so that no final status is sent or awaited.
    pub fn deletes_object(self) -> bool {
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
            Self::ServerDown => "API server away",
            Self::Terminated => "SIGTERM",
            Self::Orphaned => "killed, orphaned",
            Self::Replaced => "replaced",
        })
    }
}

impl Strike {
    /// The point at which it happens.
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
