//! Who keeps a mount in use.
//!
//! What lies on the mount itself is never touched, for its server may be gone: only links in /proc are read, and text.

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

/// Holders that are named one by one.
const NAMED: usize = 8;
/// A look at all processes takes no longer, however many there are.
const LONGEST: Duration = Duration::from_secs(2);
/// The memory map of a process that is stuck may keep whoever reads it.
const PATIENCE: Duration = Duration::from_secs(3);

/// Who keeps one mount in use, as far as it was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    /// Processes, at most eight.
    pub processes: Vec<Holder>,
    /// Mounts inside it, at most eight.
    pub inside: Vec<PathBuf>,
    /// How many further processes there are.
    pub more: usize,
    /// The look at the processes did not come to its end.
    pub cut_short: bool,
}

/// A process that keeps a mount in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its id.
    pub pid: i32,
    /// Its name, as the kernel knows it.
    pub command: String,
    /// Id of its container.
    pub container: Option<String>,
    /// What of it lies on the mount.
    pub how: How,
    /// Where it sees the mount.
    pub namespace: Namespace,
}

/// What of a process lies on a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Its working directory.
    WorkingDirectory,
    /// Its root directory.
    Root,
    /// A file that it has open.
    OpenFile,
    /// A file that is mapped into its memory, such as the program that it runs.
    MappedFile,
}

/// Which mount namespace a process is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    /// That of this agent.
    Own,
    /// Another one.
    Other,
}

/// Finds who keeps these mounts in use, by their ids; each has an entry. Processes are listed in `proc`.
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
    let look = {
        let found = Arc::clone(&found);
        move || scan::all(&found, LONGEST)
    };
    let whole = in_flight.wait_for(&first.path, Call::FindHolders, PATIENCE, look);
    let mut holders = found.lock().unwrap_or_else(PoisonError::into_inner).found();
    for it in holders.values_mut() {
        it.cut_short = whole != Ok(true);
    }
    holders
}

// === impl Holders ===

impl fmt::Display for Holders {
    /// On one line: names of processes and files are anybody's to choose.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by: Vec<String> = self.processes.iter().map(Holder::to_string).collect();
        if self.more > 0 {
            by.push(format!("{} more", self.more));
        }
        if !self.inside.is_empty() {
            let inside: Vec<_> = self.inside.iter().map(|path| format!("{path:?}")).collect();
            by.push(format!("what is mounted in it: {}", inside.join(", ")));
        }
        if by.is_empty() {
            f.write_str(
                "it is in use, and nobody was found who uses it: perhaps a loop device, swap or an NFS export",
            )?;
        } else {
            write!(f, "it is in use by {}; it goes when they end", by.join(", "))?;
        }
        if self.cut_short {
            f.write_str(" (not all processes were looked at)")?;
        }
        Ok(())
    }
}

// === impl Holder ===

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} {:?}", self.pid, self.command)?;
        if let Some(container) = &self.container {
            // As much of it as crictl shows.
            write!(f, " of container {}", container.get(..13).unwrap_or(container))?;
        }
        if self.namespace == Namespace::Other {
            f.write_str(" in another mount namespace")?;
        }
        write!(f, " ({})", self.how)
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WorkingDirectory => "working directory",
            Self::Root => "root directory",
            Self::OpenFile => "open file",
            Self::MappedFile => "mapped file",
        })
    }
}

/// Whether `path` is `place` or lies below it.
fn within(path: &Path, place: &Path) -> bool {
    path.starts_with(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pid: i32, how: How) -> Holder {
        Holder {
            pid,
            command: "sh\n\"x".to_owned(),
            container: None,
            how,
            namespace: Namespace::Own,
        }
    }

    #[test]
    fn each_holder_is_named_on_one_line() {
        let container = Some("0123456789abcdef".repeat(4));
        let holders = Holders {
            processes: vec![
                holder(7, How::WorkingDirectory),
                Holder {
                    container,
                    namespace: Namespace::Other,
                    ..holder(8, How::OpenFile)
                },
            ],
            inside: vec!["/v/a\nb".into()],
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
    fn a_look_that_found_nobody_says_so_and_whether_it_came_to_its_end() {
        let mut holders = Holders::default();
        assert!(holders.to_string().starts_with("it is in use, and nobody was found"));
        holders.cut_short = true;
        assert!(holders.to_string().ends_with("(not all processes were looked at)"));
    }
}
