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

use rustix::{
    fs::{Mode, OFlags, open, openat},
    process::{Signal, pidfd_send_signal},
};

use super::{
    cgroups::{is_valid_pid, uid_in},
    checkpoint,
    effects::{Effects, Outcome},
    fault::{self, Fault},
    procfs::{self, Stat, unless_exited},
};

const VERB: &str = "kill process";
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
        if !stat.runs() && !any_thread_runs(&procfs::dir(proc, pid))? {
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

    /// Sends SIGKILL if it is still this process, and still proven to be of this pod. Without an owner it was proven before.
    pub fn kill(&self, proc: &Path, owner: Option<&Owner>, effects: &Effects) -> Result<Outcome, Fault> {
        let path = procfs::dir(proc, self.pid);
        let fault = |error: &io::Error| Fault::new(VERB, &path, fault::errno(error));
        let Some(dir) = open_dir(proc, self.pid).map_err(|error| fault(&error))? else {
            return Ok(Outcome::Nothing);
        };
        let now = Self::read(proc, self.pid, &dir).map_err(|error| fault(&error))?;
        if !now.is_some_and(|now| now.start == self.start && owner.is_none_or(|owner| now.is_of(proc, owner))) {
            return Ok(Outcome::Nothing);
        }
        let allowed = effects.allow(VERB, &self.pid);
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

/// The shims of sandboxes and containers with these IDs.
///
/// # Errors
/// When procfs cannot be read.
pub fn shims(proc: &Path, ids: &[String]) -> io::Result<Vec<Shim>> {
    let mut found = Vec::new();
    let mut all = Vec::new();
    for pid in procfs::pids(proc)? {
        // A process that cannot be read counts as no shim, and hides no other.
        let Some(stat) = Stat::read(&procfs::dir(proc, pid)) else {
            continue;
        };
        all.push((pid, stat.parent));
        found.extend(shim(proc, pid, &stat).filter(|shim| ids.contains(&shim.id)));
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
    let stat = Stat::read(&procfs::dir(proc, pid));
    let shim = stat.and_then(|stat| shim(proc, pid, &stat));
    shim.is_some_and(|shim| owner.ids.contains(&shim.id))
}

/// The shim with this PID, without its children. The command line of another process is not read: its memory may be locked without
/// end.
fn shim(proc: &Path, pid: i32, stat: &Stat) -> Option<Shim> {
    let (_, options) = SHIMS.iter().find(|(name, _)| stat.command == *name)?;
    // A process of a container may choose the same name and command line, but has a mount namespace of its own.
    let dir = procfs::dir(proc, pid);
    let ours = procfs::namespace(Path::new("/proc/self"), "mnt");
    if procfs::namespace(&dir, "mnt").is_some_and(|theirs| ours.is_some_and(|ours| theirs != ours)) {
        return None;
    }
    let line = fs::read(dir.join("cmdline")).ok()?;
    let mut words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let program = words.next()?.rsplit('/').next()?.to_owned();
    words.find(|word| options.contains(&&**word))?;
    let id = words.next().filter(|id| !id.is_empty())?;
    Some(Shim {
        pid,
        program,
        id: id.into_owned(),
        is_stopped: matches!(stat.state, 'T' | 't'),
        children: Vec::new(),
    })
}

/// The first thread may have exited alone.
fn any_thread_runs(dir: &Path) -> io::Result<bool> {
    let Some(threads) = unless_exited(fs::read_dir(dir.join("task")))? else {
        return Ok(false);
    };
    for thread in threads {
        let Some(stat) = unless_exited(fs::read(thread?.path().join("stat")))? else {
            continue;
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
    let opened = open(procfs::dir(proc, pid), flags, Mode::empty());
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

#[cfg(test)]
mod tests;
