//! Finds the holders of a mount.
//!
//! Never accesses the mounted file system, whose server may not answer: reads only links and text in /proc.

use std::{
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{
    mounts::{Mount, MountTable},
    unmounts::{Call, CallsInFlight},
};

mod container;
mod exit;
mod scan;

pub use container::container_of;
pub use exit::wait_for_any_exit;
use scan::Scan;

/// Number of holders reported one by one.
const MAX_NAMED: usize = 8;
/// Limit of the search, whatever the number of processes.
const SEARCH_LIMIT: Duration = Duration::from_secs(2);
/// Limit of one read: reading the memory map of a hung process may hang.
const READ_LIMIT: Duration = Duration::from_secs(3);

/// Holders of one mount, as far as found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    /// Processes, at most eight.
    pub processes: Vec<Holder>,
    /// Nested mounts, at most eight.
    pub nested: Vec<PathBuf>,
    /// Number of other processes.
    pub more: usize,
    /// The search did not read all processes.
    pub is_incomplete: bool,
}

/// A process that uses a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its id.
    pub pid: i32,
    /// Its command name.
    pub command: String,
    /// ID of its container.
    pub container: Option<String>,
    /// How it uses the mount.
    pub usage: Usage,
    /// Its mount namespace.
    pub namespace: Namespace,
}

/// How a process uses a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Its working directory.
    WorkingDirectory,
    /// Its root directory.
    Root,
    /// An open file.
    OpenFile,
    /// A file mapped into its memory, such as its program.
    MappedFile,
}

/// Mount namespace of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    /// The agent's.
    Own,
    /// Another one.
    Other,
}

/// Finds the holders of these mounts, by mount ID; each has an entry. Processes are read from `proc`.
pub fn holders(
    proc: &Path,
    table: &Arc<MountTable>,
    busy: &[Mount],
    in_flight: &Arc<CallsInFlight>,
) -> HashMap<u64, Holders> {
    let Some(first) = busy.first() else {
        return HashMap::new();
    };
    let found = Arc::new(Mutex::new(Scan::new(proc.to_owned(), Arc::clone(table), busy.to_vec())));
    let search = {
        let found = Arc::clone(&found);
        move || scan::all(&found, SEARCH_LIMIT)
    };
    let result = in_flight.run_with_timeout(&first.path, Call::FindHolders, READ_LIMIT, search);
    let mut holders = found.lock().unwrap_or_else(PoisonError::into_inner).found();
    for it in holders.values_mut() {
        it.is_incomplete = result != Ok(true);
    }
    holders
}

// === impl Holders ===

impl fmt::Display for Holders {
    /// On one line: processes and files have untrusted names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by: Vec<String> = self.processes.iter().map(Holder::to_string).collect();
        if self.more > 0 {
            by.push(format!("{} more", self.more));
        }
        if !self.nested.is_empty() {
            let nested: Vec<_> = self.nested.iter().map(|path| format!("{path:?}")).collect();
            by.push(format!("what is mounted in it: {}", nested.join(", ")));
        }
        if by.is_empty() {
            f.write_str("it is in use, but no user was found: perhaps a loop device, swap or an NFS export")?;
        } else {
            write!(f, "it is in use by {}; it goes when they end", by.join(", "))?;
        }
        if self.is_incomplete {
            f.write_str(" (not all processes were read)")?;
        }
        Ok(())
    }
}

// === impl Holder ===

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} {:?}", self.pid, self.command)?;
        if let Some(container) = &self.container {
            // The prefix that crictl shows.
            write!(f, " of container {}", container.get(..13).unwrap_or(container))?;
        }
        if self.namespace == Namespace::Other {
            f.write_str(" in another mount namespace")?;
        }
        write!(f, " ({})", self.usage)
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WorkingDirectory => "working directory",
            Self::Root => "root directory",
            Self::OpenFile => "open file",
            Self::MappedFile => "mapped file",
        })
    }
}

fn is_within(path: &Path, parent: &Path) -> bool {
    path.starts_with(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pid: i32, usage: Usage) -> Holder {
        Holder {
            pid,
            command: "sh\n\"x".to_owned(),
            container: None,
            usage,
            namespace: Namespace::Own,
        }
    }

    #[test]
    fn each_holder_is_shown_on_one_line() {
        let container = Some("0123456789abcdef".repeat(4));
        let holders = Holders {
            processes: vec![
                holder(7, Usage::WorkingDirectory),
                Holder {
                    container,
                    namespace: Namespace::Other,
                    ..holder(8, Usage::OpenFile)
                },
            ],
            nested: vec!["/v/a\nb".into()],
            more: 3,
            ..Holders::default()
        };
        assert_eq!(
            holders.to_string(),
            "it is in use by process 7 \"sh\\n\\\"x\" (working directory), process 8 \"sh\\n\\\"x\" of container \
             0123456789abc in another mount namespace (open file), 3 more, what is mounted in it: \"/v/a\\nb\"; it goes \
             when they end"
        );
    }

    #[test]
    fn search_without_result_reports_it_and_whether_it_is_complete() {
        let mut holders = Holders::default();
        assert!(holders.to_string().starts_with("it is in use, but no user was found"));
        holders.is_incomplete = true;
        assert!(holders.to_string().ends_with("(not all processes were read)"));
    }
}
