//! Holders of a mount, as far as found.

use std::{fmt, path::PathBuf};

use crate::words::short_id;

/// Number of holders reported one by one.
pub(super) const MAX_NAMED: usize = 8;

/// Holders of one mount, as far as found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    /// Processes, at most eight.
    pub processes: Vec<MountHolder>,
    /// Nested mounts, at most eight.
    pub nested: Vec<PathBuf>,
    /// Number of other processes.
    pub more: usize,
    /// The search did not read all processes.
    pub is_incomplete: bool,
}

/// A process that uses a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountHolder {
    /// Its id.
    pub pid: i32,
    /// Its command name.
    pub command: String,
    /// ID of its container.
    pub container: Option<String>,
    /// How it uses the mount, such as `open file`.
    pub usage: &'static str,
    /// Its mount namespace is not the agent's.
    pub is_in_other_namespace: bool,
}

// === impl Holders ===

impl Holders {
    /// PIDs of the named processes.
    pub fn pids(&self) -> impl Iterator<Item = i32> {
        self.processes.iter().map(|holder| holder.pid)
    }
}

impl fmt::Display for Holders {
    /// On one line: processes and files have untrusted names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by: Vec<String> = self.processes.iter().map(MountHolder::to_string).collect();
        if self.more > 0 {
            by.push(format!("{} more", self.more));
        }
        if !self.nested.is_empty() {
            let nested: Vec<_> = self.nested.iter().map(|path| format!("{path:?}")).collect();
            by.push(format!("mounts below it: {}", nested.join(", ")));
        }
        if by.is_empty() {
            f.write_str(
                "it is in use, but no process was found that uses it: perhaps a loop device, swap or an NFS export",
            )?;
        } else {
            let until = match self.processes.is_empty() {
                true => "are unmounted",
                false => "exit",
            };
            write!(f, "it is in use by {}; it is retried when they {until}", by.join(", "))?;
        }
        if self.is_incomplete {
            f.write_str(" (not all processes were read)")?;
        }
        Ok(())
    }
}

// === impl MountHolder ===

impl fmt::Display for MountHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} {:?}", self.pid, self.command)?;
        if let Some(container) = &self.container {
            write!(f, " of container {}", short_id(container))?;
        }
        if self.is_in_other_namespace {
            f.write_str(" in another mount namespace")?;
        }
        write!(f, " ({})", self.usage)
    }
}
