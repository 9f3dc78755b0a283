//! Processes that survive SIGKILL, and the kernel functions that block them.

use std::{fmt, path::Path};

use crate::node::{host::PROC, procfs};

/// Number of processes named in messages.
const MAX_NAMED: usize = 8;

/// Processes that should have exited, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survivors {
    /// The first [`MAX_NAMED`] of them.
    pub named: Vec<Survivor>,
    /// Number of other processes.
    pub more: usize,
}

/// One process. Unknown values are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survivor {
    /// Its id.
    pub pid: i32,
    /// Its command name.
    pub name: String,
    /// The kernel function in which one of its threads sleeps uninterruptibly; `Some("")` if the kernel does not show the
    /// function.
    pub waits_in: Option<String>,
    /// A signal has stopped it.
    pub is_stopped: bool,
}

// === impl Survivors ===

impl Survivors {
    /// Reads the names and states of these processes.
    pub fn read(pids: &[i32]) -> Self {
        Self {
            named: pids.iter().take(MAX_NAMED).map(|pid| Survivor::read(*pid)).collect(),
            more: pids.len().saturating_sub(MAX_NAMED),
        }
    }
}

impl fmt::Display for Survivors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<_> = self.named.iter().map(ToString::to_string).collect();
        f.write_str(&named.join(", "))?;
        match self.more {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

// === impl Survivor ===

impl Survivor {
    /// Reads the name and state of a process, which may exit meanwhile.
    pub fn read(pid: i32) -> Self {
        Self::read_in(Path::new(PROC), pid)
    }

    /// As [`Self::read`], from this procfs.
    pub fn read_in(proc: &Path, pid: i32) -> Self {
        let process = procfs::dir(proc, pid);
        let waits_in = procfs::threads(&process).find_map(|thread| {
            let read = |file| procfs::text(&thread.join(file));
            (procfs::state(&read("stat")) == Some('D')).then(|| kernel_function(&read("wchan"), &read("stack")))
        });
        Self {
            pid,
            name: procfs::command(&process),
            waits_in,
            is_stopped: procfs::state(&procfs::text(&process.join("stat"))) == Some('T'),
        }
    }
}

impl fmt::Display for Survivor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A container chooses the name.
        let name = self.name.escape_debug();
        match self.waits_in.as_deref() {
            Some("") => write!(f, "{} ({name}, in uninterruptible sleep)", self.pid),
            Some(function) => write!(f, "{} ({name}, in uninterruptible sleep in {function})", self.pid),
            None if self.name.is_empty() => write!(f, "{}", self.pid),
            None => write!(f, "{} ({name})", self.pid),
        }
    }
}

/// `wchan` is `0` if the kernel hides it. `stack` is readable by root only, and not on every kernel.
fn kernel_function(wchan: &str, stack: &str) -> String {
    let innermost = || {
        let function = stack.lines().next()?.split_whitespace().nth(1)?;
        function.split('+').next()
    };
    match wchan.trim() {
        "" | "0" => innermost().unwrap_or_default().to_owned(),
        function => function.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survivor(pid: i32, name: &str, waits_in: Option<&str>) -> Survivor {
        Survivor {
            pid,
            name: name.to_owned(),
            waits_in: waits_in.map(str::to_owned),
            is_stopped: false,
        }
    }

    #[test]
    fn process_in_the_kernel_is_shown_with_its_function() {
        let survivors = Survivors {
            named: vec![
                survivor(5, "tar", Some("rpc_wait_bit_killable")),
                survivor(6, "a\nb", Some("")),
                survivor(7, "sh", None),
                survivor(8, "", None),
            ],
            more: 2,
        };
        assert_eq!(
            survivors.to_string(),
            "5 (tar, in uninterruptible sleep in rpc_wait_bit_killable), \
             6 (a\\nb, in uninterruptible sleep), 7 (sh), 8 and 2 more"
        );
    }

    #[test]
    fn only_the_first_are_named() {
        let survivors = Survivors::read(&(1_000_000_001..=1_000_000_010).collect::<Vec<_>>());
        assert_eq!((survivors.named.len(), survivors.more), (8, 2));
        assert_eq!(survivors.named[0], survivor(1_000_000_001, "", None));
    }

    #[test]
    fn state_is_found_after_any_name() {
        assert_eq!(procfs::state("7 (a) S (b) D 1 7"), Some('D'));
        assert_eq!(procfs::state("7 (a) D (b) S 1 7"), Some('S'));
        assert_eq!(procfs::state(""), None);
    }

    #[test]
    fn stack_is_read_if_wchan_is_hidden() {
        let stack = "[<0>] folio_wait_bit+0x1/0x2\n[<0>] vfs_read+0x3/0x4\n";
        assert_eq!(kernel_function("nfs_wait_bit_killable", stack), "nfs_wait_bit_killable");
        assert_eq!(kernel_function("0", stack), "folio_wait_bit");
        assert_eq!(kernel_function("0", ""), "");
    }
}
