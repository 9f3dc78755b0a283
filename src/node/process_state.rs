//! What a process waits for, and how it handles SIGTERM, from procfs. Only reads.

use std::{fs, io, path::Path};

use super::{cgroups::Survivor, procfs};

/// Bytes of `/proc/PID/status` that are read. The kernel writes about 1.5 KiB.
const MAX_STATUS: usize = 64 << 10;
/// SIGTERM in the signal masks of `/proc/PID/status`: bit 14.
const SIGTERM: u64 = 1 << 14;

/// State of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessState {
    /// PID in the agent's PID namespace.
    pub pid: i32,
    /// Its command name, which its container chooses.
    pub command: String,
    /// ID of its container, from its cgroups.
    pub container: Option<String>,
    /// It has exited, and its parent has not read its exit code.
    pub is_zombie: bool,
    /// It is PID 1 of its own PID namespace.
    pub is_init: bool,
    /// The kernel function in which one of its threads sleeps uninterruptibly; `Some("")` if the kernel hides the function.
    pub uninterruptible_in: Option<String>,
    /// How it handles SIGTERM.
    pub sigterm: SigtermHandling,
}

/// How a process handles SIGTERM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SigtermHandling {
    /// It has a handler, which may do anything.
    Handler,
    /// It ignores the signal (`SIG_IGN`).
    Ignored,
    /// It blocks the signal, which stays pending.
    Blocked,
    /// It is PID 1 of its namespace without a handler: the kernel drops the signal (pid_namespaces(7)).
    InitWithoutHandler,
    /// The signal terminates it.
    #[default]
    Default,
}

// === impl ProcessState ===

impl ProcessState {
    /// Reads the process with this PID; `None` if it has exited.
    ///
    /// # Errors
    /// When its status cannot be read or parsed.
    pub fn read(proc: &Path, pid: i32) -> io::Result<Option<Self>> {
        let dir = procfs::dir(proc, pid);
        let Some(status) = read_if_alive(&dir.join("status"))? else {
            return Ok(None);
        };
        if status.len() > MAX_STATUS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let Survivor { name, waits_in, .. } = Survivor::read_in(proc, pid);
        let cgroup = read_if_alive(&dir.join("cgroup"))?.unwrap_or_default();
        let state = Self::parse(&status).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Some(Self {
            pid,
            command: name,
            container: super::holders::container_of(&cgroup),
            uninterruptible_in: waits_in,
            ..state
        }))
    }

    /// The fields that `/proc/PID/status` has.
    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut lines = status.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(found, _)| *found == name).map(|(_, value)| value.trim())
        };
        let mask = |name| u64::from_str_radix(field(name)?, 16).ok();
        // The last PID is the one in the process's own namespace.
        let is_init = field("NSpid").is_some_and(|pids| {
            let mut pids = pids.split_whitespace();
            pids.clone().count() > 1 && pids.next_back() == Some("1")
        });
        let has = |mask: u64| mask & SIGTERM != 0;
        let (ignored, blocked, caught) = (mask("SigIgn")?, mask("SigBlk")?, mask("SigCgt")?);
        let sigterm = match (has(ignored), has(blocked), has(caught)) {
            (true, _, _) => SigtermHandling::Ignored,
            (false, true, _) => SigtermHandling::Blocked,
            (false, false, true) => SigtermHandling::Handler,
            (false, false, false) if is_init => SigtermHandling::InitWithoutHandler,
            (false, false, false) => SigtermHandling::Default,
        };
        Some(Self {
            is_zombie: field("State")?.starts_with(['Z', 'X']),
            is_init,
            sigterm,
            ..Self::default()
        })
    }
}

/// `None` if the process has exited. A command name need not be UTF-8.
fn read_if_alive(file: &Path) -> io::Result<Option<String>> {
    let bytes = procfs::unless_exited(fs::read(file))?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn status(ns_pid: &str, [blocked, ignored, caught]: [u64; 3]) -> String {
        format!(
            "Name:\ta b\nState:\tS (sleeping)\nPid:\t77\nNSpid:\t{ns_pid}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\n\
             SigCgt:\t{caught:016x}\n"
        )
    }

    #[test]
    fn handling_of_sigterm_is_read_from_the_signal_masks() {
        const OTHER: u64 = !SIGTERM;
        for (ns_pid, masks, expected) in [
            ("77", [OTHER, OTHER, OTHER], SigtermHandling::Default),
            ("77\t1", [OTHER, OTHER, OTHER], SigtermHandling::InitWithoutHandler),
            // PID 1 of the agent's own namespace is not a container's.
            ("1", [0, 0, 0], SigtermHandling::Default),
            ("77\t12", [0, 0, 0], SigtermHandling::Default),
            ("77\t1", [0, 0, SIGTERM], SigtermHandling::Handler),
            ("77", [0, SIGTERM, 0], SigtermHandling::Ignored),
            ("77\t1", [0, SIGTERM, 0], SigtermHandling::Ignored),
            ("77", [SIGTERM, 0, SIGTERM], SigtermHandling::Blocked),
        ] {
            let state = ProcessState::parse(&status(ns_pid, masks)).unwrap();
            assert_eq!(state.sigterm, expected, "{ns_pid:?} {masks:x?}");
        }
    }

    #[test]
    fn status_without_masks_is_an_error_and_no_handling() {
        assert_eq!(ProcessState::parse("Name:\ta\nState:\tS\n"), None);
    }

    #[test]
    fn process_that_ignores_sigterm_is_read_until_it_exits() {
        let proc = Path::new("/proc");
        let mut ignores = Command::new("sh")
            .args(["-c", "trap '' TERM; exec sleep 1000"])
            .spawn()
            .unwrap();
        let pid = i32::try_from(ignores.id()).unwrap();
        let read = || ProcessState::read(proc, pid).unwrap();
        while read().unwrap().command != "sleep" {}
        assert_eq!(read().unwrap().sigterm, SigtermHandling::Ignored);
        ignores.kill().unwrap();
        while !read().unwrap().is_zombie {}
        ignores.wait().unwrap();
        assert_eq!(read(), None);
    }
}
