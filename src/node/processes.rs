//! Processes that the runtime names, and the shims above them: whether they run, whose they are, and their SIGKILL.
//!
//! A PID may be reused at any time. Everything about a process is read through one descriptor of its directory in procfs, and the
//! signal goes to that descriptor (pidfd_send_signal(2)): another process with the same PID is neither read nor killed.

use std::{
    fmt, fs,
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::Path,
    time::Duration,
};

use nix::{
    errno::Errno,
    unistd::{SysconfVar, sysconf},
};
use rustix::{
    fs::{Mode, OFlags, open, openat},
    process::{Signal, pidfd_send_signal},
};

use super::{
    cgroups::{is_valid_pid, uid_in},
    checkpoint,
    effects::{Effect, Effects, Outcome},
    fault::{self, Fault},
};

const VERB: &str = "kill process";
/// Index of the start time (field 22) in `/proc/PID/stat`, counted after the name and the parent.
const START_FIELD: usize = 17;
/// Clock ticks are rounded down.
const TICK: Duration = Duration::from_millis(10);
/// Command names of containerd's shims, which the kernel cuts, and of CRI-O's monitor; each with the option before its ID.
const SHIMS: [(&str, [&str; 2]); 2] = [("containerd-shim", ["-id", "--id"]), ("conmon", ["-c", "--cid"])];
/// Programs of shims whose children are the processes of containers. Those of other shims may be virtual machines.
const OF_PROCESSES: [&str; 4] = [
    "containerd-shim",
    "containerd-shim-runc-v1",
    "containerd-shim-runc-v2",
    "conmon",
];

/// A process that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// PID in the agent's PID namespace.
    pub pid: i32,
    /// Its command name, which its container chooses.
    pub command: String,
    /// The longest of its cgroups' paths.
    pub cgroup: String,
    /// Its start since boot. With another start it is another process.
    pub start: Duration,
    parent: i32,
    /// Text of `/proc/PID/cgroup`.
    cgroups: String,
}

/// What identifies the processes of a pod.
#[derive(Debug, Clone)]
pub struct Owner {
    /// The pod's UID.
    pub uid: String,
    /// IDs of its sandboxes and containers.
    pub ids: Vec<String>,
}

/// The process of the runtime above a container's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shim {
    /// Its PID.
    pub pid: i32,
    /// Name of its program, such as `containerd-shim-runc-v2`.
    pub program: String,
    /// ID of its sandbox or container.
    pub id: String,
    /// A signal or a debugger has stopped it: it answers nothing.
    pub is_stopped: bool,
    /// Its children that run.
    pub children: Vec<Process>,
}

// === impl Process ===

impl Process {
    /// The process with this PID, if it runs and had started by `started_by` (since boot): PIDs are reused. A zombie does not run.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn find(proc: &Path, pid: i32, started_by: Duration) -> io::Result<Option<Self>> {
        let Some(dir) = open_dir(proc, pid)? else {
            return Ok(None);
        };
        let found = Self::read(proc, pid, &dir)?;
        Ok(found.filter(|found| found.start <= started_by.saturating_add(TICK)))
    }

    fn read(proc: &Path, pid: i32, dir: &OwnedFd) -> io::Result<Option<Self>> {
        let Some(stat) = read_in(dir, "stat")? else {
            return Ok(None);
        };
        let stat = Stat::parse(&stat).ok_or(io::ErrorKind::InvalidData)?;
        if !stat.runs() && !any_thread_runs(&proc.join(pid.to_string()))? {
            return Ok(None);
        }
        let cgroups = read_in(dir, "cgroup")?.unwrap_or_default();
        Ok(Some(Self {
            pid,
            command: stat.command,
            cgroup: longest_path(&cgroups).to_owned(),
            start: stat.start,
            parent: stat.parent,
            cgroups,
        }))
    }

    /// Whether it is proven to be of this pod: by its cgroup, or because its parent is the shim of the pod.
    pub fn is_of(&self, proc: &Path, owner: &Owner) -> bool {
        is_valid_pid(&self.pid) && (self.is_in_cgroup_of(owner) || is_shim_of(proc, self.parent, owner))
    }

    /// Whether it is in a cgroup of this pod.
    pub fn is_in_cgroup_of(&self, owner: &Owner) -> bool {
        owner.has_cgroup(&self.cgroups)
    }

    /// Sends SIGKILL if it is still this process, and still proven to be of this pod.
    pub fn kill(&self, proc: &Path, owner: &Owner, effects: &Effects) -> Result<Outcome, Fault> {
        self.kill_if(proc, &|now| now.is_of(proc, owner), effects)
    }

    /// Sends SIGKILL if it is still this process, which was proven to be a pod's.
    pub fn kill_proven(&self, proc: &Path, effects: &Effects) -> Result<Outcome, Fault> {
        self.kill_if(proc, &|_| true, effects)
    }

    fn kill_if(&self, proc: &Path, is_victim: &dyn Fn(&Self) -> bool, effects: &Effects) -> Result<Outcome, Fault> {
        let path = proc.join(self.pid.to_string());
        let fault = |error: &io::Error| Fault::new(VERB, &path, fault::errno(error));
        let Some(dir) = open_dir(proc, self.pid).map_err(|error| fault(&error))? else {
            return Ok(Outcome::Nothing);
        };
        let now = Self::read(proc, self.pid, &dir).map_err(|error| fault(&error))?;
        if !now.is_some_and(|now| now.start == self.start && is_victim(&now)) {
            return Ok(Outcome::Nothing);
        }
        let allowed = effects.allow(&Effect::new(VERB, &self.pid));
        allowed.map_err(|blocked| Fault::new(VERB, &path, blocked))?;
        let killed = pidfd_send_signal(&dir, Signal::KILL);
        checkpoint::after(VERB, &self.pid);
        match killed {
            Ok(()) => Ok(Outcome::Done),
            Err(rustix::io::Errno::SRCH) => Ok(Outcome::Nothing),
            Err(errno) => Err(Fault::new(VERB, &path, fault::errno_of(errno))),
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} {:?} in cgroup {}", self.pid, self.command, self.cgroup)
    }
}

// === impl Shim ===

impl Shim {
    /// Whether its children are the processes of containers, and no virtual machines.
    pub fn is_of_processes(&self) -> bool {
        OF_PROCESSES.contains(&self.program.as_str())
    }
}

impl fmt::Display for Shim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shim {} ({})", self.pid, self.program.escape_debug())?;
        f.write_str(if self.is_stopped {
            ", which is stopped (state T)"
        } else {
            ""
        })
    }
}

// === impl Owner ===

impl Owner {
    /// Whether one of the paths in this text of `/proc/PID/cgroup` is the pod's or one of its containers'.
    fn has_cgroup(&self, cgroups: &str) -> bool {
        let mut names = cgroups.lines().filter_map(path_in).flat_map(|path| path.split('/'));
        names.any(|name| {
            uid_in(name).is_some_and(|uid| uid == self.uid)
                || self.ids.iter().any(|id| !id.is_empty() && name.contains(id.as_str()))
        })
    }
}

/// When the process with this PID started, since boot; `None` if it has exited. A zombie has.
///
/// # Errors
/// When it cannot be read.
pub fn running_since(proc: &Path, pid: i32) -> io::Result<Option<Duration>> {
    Ok(Process::find(proc, pid, Duration::MAX)?.map(|process| process.start))
}

/// The shims of sandboxes and containers with these IDs.
///
/// # Errors
/// When procfs cannot be read.
pub fn shims(proc: &Path, ids: &[String]) -> io::Result<Vec<Shim>> {
    let mut found = Vec::new();
    let mut all = Vec::new();
    for entry in fs::read_dir(proc)? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // A process that cannot be read counts as no shim, and hides no other.
        let stat = fs::read(proc.join(pid.to_string()).join("stat")).unwrap_or_default();
        let Some(stat) = Stat::parse(&String::from_utf8_lossy(&stat)) else {
            continue;
        };
        all.push((pid, stat.parent));
        if let Some((program, id)) = shim(proc, pid, &stat.command).filter(|(_, id)| ids.contains(id)) {
            found.push(Shim {
                pid,
                is_stopped: matches!(stat.state, 'T' | 't'),
                program,
                id,
                children: Vec::new(),
            });
        }
    }
    for shim in &mut found {
        for (pid, _) in all.iter().filter(|(_, parent)| *parent == shim.pid) {
            let child = Process::find(proc, *pid, Duration::MAX)?;
            // Meanwhile it may have got another parent.
            shim.children.extend(child.filter(|child| child.parent == shim.pid));
        }
    }
    Ok(found)
}

/// Whether this process is the shim of one of the owner's sandboxes or containers.
fn is_shim_of(proc: &Path, pid: i32, owner: &Owner) -> bool {
    let stat = fs::read(proc.join(pid.to_string()).join("stat")).unwrap_or_default();
    let stat = Stat::parse(&String::from_utf8_lossy(&stat));
    stat.and_then(|stat| shim(proc, pid, &stat.command))
        .is_some_and(|(_, id)| owner.ids.contains(&id))
}

/// Program and ID in the command line of a shim. That of another process is not read: its memory may be locked without end.
fn shim(proc: &Path, pid: i32, command: &str) -> Option<(String, String)> {
    let (_, options) = SHIMS.iter().find(|(name, _)| command == *name)?;
    // A process of a container may choose the same name and command line, but has a mount namespace of its own.
    let namespace = fs::read_link(proc.join(pid.to_string()).join("ns/mnt"));
    if namespace.is_ok_and(|theirs| fs::read_link("/proc/self/ns/mnt").is_ok_and(|ours| theirs != ours)) {
        return None;
    }
    let line = fs::read(proc.join(pid.to_string()).join("cmdline")).ok()?;
    let mut words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let program = words.next()?.rsplit('/').next()?.to_owned();
    words.find(|word| options.contains(&&**word))?;
    let id = words.next().filter(|id| !id.is_empty())?;
    Some((program, id.into_owned()))
}

/// What `/proc/PID/stat` shows.
struct Stat {
    command: String,
    state: char,
    parent: i32,
    start: Duration,
}

// === impl Stat ===

impl Stat {
    /// The name may contain any character.
    fn parse(stat: &str) -> Option<Self> {
        let (before, behind) = stat.rsplit_once(") ")?;
        let mut fields = behind.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let ticks: u64 = fields.nth(START_FIELD)?.parse().ok()?;
        let a_second = sysconf(SysconfVar::CLK_TCK).ok()??;
        let a_second = u64::try_from(a_second).ok().filter(|ticks| *ticks > 0)?;
        let start = Duration::from_secs(ticks / a_second)
            + Duration::from_secs(ticks % a_second) / u32::try_from(a_second).ok()?;
        Some(Self {
            command: before.split_once('(')?.1.to_owned(),
            state,
            parent,
            start,
        })
    }

    fn runs(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// The first thread may have exited alone.
fn any_thread_runs(dir: &Path) -> io::Result<bool> {
    let threads = match fs::read_dir(dir.join("task")) {
        Err(error) if has_exited(&error) => return Ok(false),
        threads => threads?,
    };
    for thread in threads {
        let stat = match fs::read(thread?.path().join("stat")) {
            Err(error) if has_exited(&error) => continue,
            stat => stat?,
        };
        let stat = Stat::parse(&String::from_utf8_lossy(&stat)).ok_or(io::ErrorKind::InvalidData)?;
        if stat.runs() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The path in a line of `/proc/PID/cgroup`.
fn path_in(line: &str) -> Option<&str> {
    line.splitn(3, ':').nth(2)
}

fn longest_path(cgroups: &str) -> &str {
    let paths = cgroups.lines().filter_map(path_in);
    paths.max_by_key(|path| path.len()).unwrap_or_default()
}

/// The directory of a process; `None` if there is none.
fn open_dir(proc: &Path, pid: i32) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = open(proc.join(pid.to_string()), flags, Mode::empty());
    unless_exited(opened.map_err(io::Error::from))
}

/// A file of a process; `None` if it has exited. A command name need not be UTF-8.
fn read_in(dir: &OwnedFd, name: &str) -> io::Result<Option<String>> {
    let opened = openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let read = opened.map_err(io::Error::from).and_then(|file| {
        let mut bytes = Vec::new();
        fs::File::from(file).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    });
    unless_exited(read)
}

fn unless_exited<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if has_exited(&error) => Ok(None),
        result => result.map(Some),
    }
}

/// It exited before or during the read.
fn has_exited(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

#[cfg(test)]
mod tests;
