//! What procfs shows of processes. A process may exit at any time: its files are missing then.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    errno::Errno,
    unistd::{SysconfVar, sysconf},
};

/// Index of the start time (field 22) in `/proc/PID/stat`, counted after the state and the parent.
const START_FIELD: usize = 17;

/// What `/proc/PID/stat` shows.
pub(super) struct Stat {
    pub command: String,
    pub state: char,
    pub parent: i32,
    /// Since boot.
    pub start: Duration,
}

/// All processes, by PID.
pub(super) fn pids(proc: &Path) -> io::Result<Vec<i32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir(proc)? {
        pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    pids.sort_unstable();
    Ok(pids)
}

/// The directory of a process.
pub(super) fn dir(proc: &Path, pid: i32) -> PathBuf {
    proc.join(pid.to_string())
}

/// Directories of all threads: the first may have exited while another runs. None if the process has exited.
pub(super) fn threads(process: &Path) -> impl Iterator<Item = PathBuf> {
    let threads = fs::read_dir(process.join("task")).into_iter().flatten();
    threads.flatten().map(|thread| thread.path())
}

/// The text of a file; empty if it cannot be read. A process chooses its name, which may be no UTF-8.
pub(super) fn text(file: &Path) -> String {
    String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned()
}

/// The command name; empty if it cannot be read.
pub(super) fn command(process: &Path) -> String {
    text(&process.join("comm")).trim_end().to_owned()
}

/// The namespace of this kind, such as `mnt`.
pub(super) fn namespace(process: &Path, kind: &str) -> Option<PathBuf> {
    fs::read_link(process.join("ns").join(kind)).ok()
}

/// `None` if the process has exited before or during the read.
pub(super) fn unless_exited<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32) => {
            Ok(None)
        }
        read => read.map(Some),
    }
}

/// The state in the text of `/proc/PID/stat`. It follows the name, which may contain any character.
pub(super) fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

// === impl Stat ===

impl Stat {
    /// Reads that of this process.
    pub fn read(process: &Path) -> Option<Self> {
        Self::parse(&text(&process.join("stat")))
    }

    /// Reads the text of `/proc/PID/stat`.
    pub fn parse(stat: &str) -> Option<Self> {
        let (before, behind) = stat.rsplit_once(") ")?;
        let mut fields = behind.split_ascii_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        let ticks: u64 = fields.nth(START_FIELD)?.parse().ok()?;
        let a_second = sysconf(SysconfVar::CLK_TCK).ok()??;
        let a_second = u64::try_from(a_second).ok().filter(|ticks| *ticks > 0)?;
        let start = Duration::from_secs(ticks / a_second)
            + Duration::from_secs(ticks % a_second) / u32::try_from(a_second).ok()?;
        Some(Self {
            command: before.split_once('(')?.1.to_owned(),
            state: state(stat)?,
            parent,
            start,
        })
    }

    /// Whether it is no zombie.
    pub fn runs(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x')
    }
}
