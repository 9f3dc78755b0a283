//! What a failed step waits for, as far as this node shows it. The waiting worker watches it. Pure.

use std::{fmt, path::PathBuf};

/// One thing whose change may let a failed step succeed. The next attempt begins within two seconds of the change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitsFor {
    /// The exit of the process with this PID.
    Exit(i32),
    /// The mounts at, above or below this path, in the agent's mount namespace.
    Mounts(PathBuf),
    /// All mounts in the mount namespace of the process with this PID.
    MountsOf(i32),
    /// A file, socket or directory: whether it exists, which one it is, its attributes, and its entries. It may be missing. What
    /// is mounted on it is never accessed.
    Path(PathBuf),
}

/// Adds these, each once.
pub fn add(to: &mut Vec<WaitsFor>, more: impl IntoIterator<Item = WaitsFor>) {
    for it in more {
        if !to.contains(&it) {
            to.push(it);
        }
    }
}

// === impl WaitsFor ===

impl WaitsFor {
    /// The process that has to exit.
    pub fn pid(&self) -> Option<i32> {
        match self {
            Self::Exit(pid) => Some(*pid),
            Self::Mounts(_) | Self::MountsOf(_) | Self::Path(_) => None,
        }
    }
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(pid) => write!(f, "process {pid}"),
            Self::Mounts(path) => write!(f, "the mounts at {path:?}"),
            Self::MountsOf(pid) => write!(f, "the mounts in the namespace of process {pid}"),
            Self::Path(path) => write!(f, "{path:?}"),
        }
    }
}
