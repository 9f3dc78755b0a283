//! Kubelet processes that work on the same pods as the agent. While one exists, effects are blocked.
//!
//! A process is judged by facts that it cannot fake: capabilities, namespaces, mounts and sockets. Its name and its command line
//! only make it a candidate. A failed walk through its own root file system proves nothing. A process of any name is a kubelet if
//! it listens on a socket below our kubelet's directory that only a kubelet has.

use std::{
    fmt, fs,
    io::{self, Read as _},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use nix::errno::Errno;

use super::{fault, kubelet_root::KubeletRoot, lock::readable};
use crate::model::foreign::ForeignText;

pub mod arguments;
mod evidence;
mod probe;
mod rights;
mod root;
mod sockets;
pub mod start;

use arguments::Arguments;
use sockets::Listeners;
pub use sockets::is_kubelets_answer;

const NAME: &str = "kubelet";
/// Programs that hold a kubelet or start one, each with the arguments that make it do so; without any it always does.
const WRAPPERS: [(&str, &[&[u8]]); 10] = [
    ("kubelite", &[]),
    ("k3s-server", &[]),
    ("k3s-agent", &[]),
    ("k3s", &[b"server", b"agent"]),
    ("rke2", &[b"server", b"agent"]),
    ("k0s", &[b"worker", b"controller"]),
    ("microshift", &[b"run"]),
    ("hyperkube", &[b"kubelet"]),
    ("edgecore", &[]),
    ("edged", &[]),
];

/// A kubelet that works, or may work, on our pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeletProcess {
    /// Its process id.
    pub pid: i32,
    /// Its command line.
    pub command: ForeignText,
    /// Why it counts.
    pub why: MatchReason,
    /// Whether it is a program that holds a kubelet among other things.
    pub is_wrapper: bool,
}

/// Why a kubelet counts as one of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MatchReason {
    /// Its directory is ours.
    SameDirectory,
    /// It has another directory on this machine, and the same runtime as far as it says: it may be this node's.
    SameMachine,
    /// Its directory could not be looked at: better one too many.
    Unreadable(Errno),
    /// It holds a kubelet on this machine whose directory is not on its command line: better one too many.
    UnknownDirectory,
}

/// What a process is by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kubelet,
    /// Its name only begins as a kubelet's: it is one if it has what only a kubelet has.
    Candidate,
    /// By these arguments, if they are not none.
    Wrapper(&'static [&'static [u8]]),
    /// Whatever its name: it listens where only a kubelet does.
    Listener,
}

/// What tells whether a kubelet works on our pods.
#[derive(Debug, Clone)]
pub struct LocalKubelet {
    /// Our kubelet's directory.
    pub root: KubeletRoot,
    /// Our runtime's socket.
    pub runtime: PathBuf,
    /// Address of our kubelet's healthz endpoint, if it has one.
    pub healthz: Option<SocketAddr>,
}

/// All kubelets that count, from the files of `proc`, by pid. It reads a file of every process: any of them may have
/// become a kubelet by exec. Where no kubelet counts by its name, and a kubelet's socket listens, it searches for the process that
/// has that socket.
///
/// # Errors
/// When none was seen and not all could be looked at, as without descriptors or memory.
pub fn find(proc: &Path, local: &LocalKubelet) -> io::Result<Vec<KubeletProcess>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir(proc)? {
        pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    pids.sort_unstable();
    let named = collect(&pids, |pid| by_name(proc, pid, local));
    if named.as_ref().is_ok_and(|found| !found.is_empty()) {
        return named;
    }
    let listeners = evidence::listeners(proc)?;
    if listeners.is_empty() {
        return named;
    }
    match collect(&pids, |pid| by_socket(proc, pid, &listeners, local)) {
        Ok(found) if found.is_empty() => named,
        // A process may be closed even to root. It may be a kubelet of ours only if one listens below our directory.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !evidence::is_below(&listeners, local) => {
            named
        }
        found => found,
    }
}

/// All that `probe_pid` finds; its error when it finds none.
fn collect(
    pids: &[i32],
    probe_pid: impl Fn(i32) -> io::Result<Option<KubeletProcess>>,
) -> io::Result<Vec<KubeletProcess>> {
    let (mut found, mut unseen) = (Vec::new(), None);
    for &pid in pids {
        match probe_pid(pid) {
            Ok(it) => found.extend(it),
            Err(error) => unseen = Some(error),
        }
    }
    match unseen {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// The process with this pid, if it is a kubelet that counts.
///
/// # Errors
/// When that is unknown, as without descriptors or memory.
pub fn with_pid(proc: &Path, pid: i32, local: &LocalKubelet) -> io::Result<Option<KubeletProcess>> {
    match by_name(proc, pid, local)? {
        None => by_socket(proc, pid, &evidence::listeners(proc)?, local),
        found => Ok(found),
    }
}

/// The process with this pid, if it is a kubelet that counts whatever its name is: it has one of these listening sockets.
fn by_socket(proc: &Path, pid: i32, listeners: &Listeners, local: &LocalKubelet) -> io::Result<Option<KubeletProcess>> {
    let dir = proc.join(pid.to_string());
    if listeners.is_empty() || !rights::may_mount(proc, &dir) {
        return Ok(None);
    }
    let roots = evidence::roots(&dir, listeners)?;
    if roots.is_empty() {
        return Ok(None);
    }
    Ok(match_process(pid, Kind::Listener, &dir, roots, local))
}

/// The process with this pid, if it is a kubelet that counts and has the name of one.
fn by_name(proc: &Path, pid: i32, local: &LocalKubelet) -> io::Result<Option<KubeletProcess>> {
    let dir = proc.join(pid.to_string());
    let Some(kind) = kind(&dir)? else { return Ok(None) };
    // First of all: a kubelet mounts, so a process that cannot mount is no kubelet, whatever its name and arguments are.
    if !rights::may_mount(proc, &dir) {
        return Ok(None);
    }
    Ok(match_process(pid, kind, &dir, Vec::new(), local))
}

/// The process, if it counts. `roots` are the directories below which it listens on a kubelet's sockets.
fn match_process(
    pid: i32,
    kind: Kind,
    dir: &Path,
    roots: Vec<PathBuf>,
    local: &LocalKubelet,
) -> Option<KubeletProcess> {
    let arguments = fs::read(dir.join("cmdline"));
    let why = why(kind, dir, &arguments, roots, local)?;
    Some(KubeletProcess {
        pid,
        command: readable(arguments.unwrap_or_default()),
        why,
        is_wrapper: matches!(kind, Kind::Wrapper(_)),
    })
}

/// By its name. A process that is gone by now is none; one whose name cannot be read may be any.
fn kind(dir: &Path) -> io::Result<Option<Kind>> {
    // A name has 15 bytes and a newline at most. Not `fs::read`, which asks for the size and the end, too.
    let mut name = [0; 32];
    let read = fs::File::open(dir.join("comm")).and_then(|mut file| file.read(&mut name));
    let read = match read {
        Ok(read) => read,
        Err(error) if matches!(fault::errno(&error), Errno::ENOENT | Errno::ESRCH) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Ok(name) = std::str::from_utf8(name[..read].trim_ascii_end()) else {
        return Ok(None);
    };
    if name == NAME {
        return Ok(Some(Kind::Kubelet));
    }
    // `kubelet-v1.36.3`, `kubelet-amd64`, `kubelet.real`, `.kubelet-wrapped`; but also drivers, approvers and exporters.
    if name.trim_start_matches('.').starts_with(NAME) {
        return Ok(Some(Kind::Candidate));
    }
    let holder = WRAPPERS.iter().find(|(holder, _)| name == *holder);
    Ok(holder.map(|(_, by)| Kind::Wrapper(by)))
}

/// Why the kubelet with this directory in procfs counts; `None` if it works elsewhere, has ended, or is none.
fn why(
    kind: Kind,
    dir: &Path,
    arguments: &io::Result<Vec<u8>>,
    roots: Vec<PathBuf>,
    local: &LocalKubelet,
) -> Option<MatchReason> {
    let probed = match arguments {
        Ok(arguments) => probe::probe(kind, dir, &Arguments(arguments), roots, local),
        Err(error) => Err(fault::errno(error)),
    };
    match probed {
        Ok(None) => None,
        Ok(Some(MatchReason::UnknownDirectory)) | Err(_) if has_exited(dir) => None,
        Ok(why) => why,
        Err(errno) => Some(MatchReason::Unreadable(errno)),
    }
}

/// A process without any thread left but a zombie, or none at all.
fn has_exited(dir: &Path) -> bool {
    let Ok(tasks) = fs::read_dir(dir.join("task")) else {
        return !dir.exists();
    };
    let is_zombie = || {
        let stat = fs::read(dir.join("stat")).unwrap_or_default();
        let after_name = stat.iter().rposition(|&byte| byte == b')').map(|at| &stat[at + 1..]);
        after_name
            .and_then(|rest| rest.trim_ascii_start().first())
            .is_some_and(|state| b"ZX".contains(state))
    };
    tasks.count() <= 1 && is_zombie()
}

impl fmt::Display for KubeletProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.command, self.pid)?;
        if self.why == MatchReason::SameMachine {
            f.write_str(
                "; its --root-dir is not our --kubelet-root: give us its directory, or, if it is another node's, \
                 name its runtime on its command line with --container-runtime-endpoint",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
