//! Kubelet processes that work on the same pods as the agent. While one exists, effects are blocked.
//!
//! A process is judged by facts that it cannot fake: capabilities, namespaces, mounts and sockets. Its name and its command line
//! only make it a candidate. A failed walk through its own root file system proves nothing. A process of any name is a kubelet if
//! it listens on a socket that only a kubelet has, below the kubelet's root directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{fault, lock::readable};

pub mod arguments;
mod capabilities;
mod evidence;
pub mod flags;
mod healthz;
mod kind;
mod probe;
mod process;
mod root;
mod sockets;

use arguments::Arguments;
pub use healthz::is_kubelets_answer;
use kind::{Kind, has_exited, kind};
use probe::WalkTime;
pub use process::{KubeletProcess, LocalKubelet, MatchReason};
use sockets::Listeners;

/// All kubelets that count, from the files of `proc`, by pid. It reads a file of every process: any of them may have
/// become a kubelet by exec. Where no kubelet counts by its name, and a kubelet's socket listens, it searches for the process that
/// has that socket. Walks through root file systems that hang share two seconds.
///
/// # Errors
/// When none was seen and not all could be read, as without descriptors or memory.
pub fn find(proc: &Path, local: &LocalKubelet) -> io::Result<Vec<KubeletProcess>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir(proc)? {
        pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    pids.sort_unstable();
    let time = WalkTime::of_search();
    let named = collect(&pids, |pid| by_name(proc, pid, local, time));
    if named.as_ref().is_ok_and(|found| !found.is_empty()) {
        return named;
    }
    let listeners = evidence::listeners(proc)?;
    if listeners.is_empty() {
        return named;
    }
    match collect(&pids, |pid| by_socket(proc, pid, &listeners, local, time)) {
        Ok(found) if found.is_empty() => named,
        // A process may be closed even to root. It may be this node's kubelet only if one listens below the kubelet's root directory.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !evidence::is_below(&listeners, local) => {
            named
        }
        found => found,
    }
}

/// What a check of processes that have just executed a program has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Started {
    /// One of them is a kubelet that counts.
    Kubelet(KubeletProcess),
    /// One has a kubelet's name. It does not count, or does so only when it listens on a kubelet's sockets.
    Candidate,
    /// None has a kubelet's name. Any may still open a kubelet's sockets.
    Other,
}

/// Those of these processes that have a kubelet's name. Reads only names, which blocks on nothing.
///
/// # Errors
/// When a name cannot be read.
pub fn with_kubelet_name(proc: &Path, mut pids: Vec<i32>) -> io::Result<Vec<i32>> {
    let mut failed = None;
    pids.retain(|pid| match kind(&proc.join(pid.to_string())) {
        Ok(kind) => kind.is_some(),
        Err(error) => {
            failed = Some(error);
            true
        }
    });
    failed.map_or(Ok(pids), Err)
}

/// Checks processes that have just executed a program. Reads nothing of any other process.
///
/// # Errors
/// When what one of them is cannot be read.
pub fn check_started(proc: &Path, pids: &[i32], local: &LocalKubelet) -> io::Result<Started> {
    let (mut started, time) = (Started::Other, WalkTime::of_search());
    for &pid in pids {
        let dir = proc.join(pid.to_string());
        let Some(kind) = candidate(proc, &dir)? else { continue };
        match match_process(pid, kind, &dir, Vec::new(), local, time) {
            Some(kubelet) => return Ok(Started::Kubelet(kubelet)),
            None => started = Started::Candidate,
        }
    }
    Ok(started)
}

/// Whether any process in the agent's network namespace listens on a socket that only a kubelet has.
///
/// # Errors
/// When the sockets cannot be read.
pub fn has_kubelet_socket(proc: &Path) -> io::Result<bool> {
    Ok(!evidence::listeners(proc)?.is_empty())
}

/// All kubelets that `probe_pid` finds.
///
/// # Errors
/// The last error of `probe_pid`, if it found none.
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
    let time = WalkTime::of_search();
    match by_name(proc, pid, local, time)? {
        None => by_socket(proc, pid, &evidence::listeners(proc)?, local, time),
        found => Ok(found),
    }
}

/// The process with this pid, if it is a kubelet that counts under any name: it has one of these listening sockets.
fn by_socket(
    proc: &Path,
    pid: i32,
    listeners: &Listeners,
    local: &LocalKubelet,
    time: WalkTime,
) -> io::Result<Option<KubeletProcess>> {
    let dir = proc.join(pid.to_string());
    if listeners.is_empty() || !capabilities::may_mount(proc, &dir) {
        return Ok(None);
    }
    let roots = evidence::roots(&dir, listeners)?;
    if roots.is_empty() {
        return Ok(None);
    }
    Ok(match_process(pid, Kind::Listener, &dir, roots, local, time))
}

/// The process with this pid, if it is a kubelet that counts and has the name of one.
fn by_name(proc: &Path, pid: i32, local: &LocalKubelet, time: WalkTime) -> io::Result<Option<KubeletProcess>> {
    let dir = proc.join(pid.to_string());
    let kind = candidate(proc, &dir)?;
    Ok(kind.and_then(|kind| match_process(pid, kind, &dir, Vec::new(), local, time)))
}

/// The kind of a process that has a kubelet's name and may be one.
fn candidate(proc: &Path, dir: &Path) -> io::Result<Option<Kind>> {
    let kind = kind(dir)?;
    // A kubelet mounts, so a process that cannot mount is no kubelet, even with a kubelet's name and arguments.
    Ok(kind.filter(|_| capabilities::may_mount(proc, dir)))
}

/// The process, if it counts. `roots` are the directories below which it listens on a kubelet's sockets.
fn match_process(
    pid: i32,
    kind: Kind,
    dir: &Path,
    roots: Vec<PathBuf>,
    local: &LocalKubelet,
    time: WalkTime,
) -> Option<KubeletProcess> {
    let arguments = fs::read(dir.join("cmdline"));
    let why = why(kind, dir, &arguments, roots, local, time)?;
    Some(KubeletProcess {
        pid,
        command: readable(arguments.unwrap_or_default()),
        why,
        is_wrapper: matches!(kind, Kind::Wrapper(_)),
    })
}

/// Why the kubelet with this directory in procfs counts; `None` if it works elsewhere, has ended, or is none.
fn why(
    kind: Kind,
    dir: &Path,
    arguments: &io::Result<Vec<u8>>,
    roots: Vec<PathBuf>,
    local: &LocalKubelet,
    time: WalkTime,
) -> Option<MatchReason> {
    let probed = match arguments {
        Ok(arguments) => probe::probe(kind, dir, &Arguments(arguments), roots, local, time),
        Err(error) => Err(fault::errno(error)),
    };
    match probed {
        Ok(None) => None,
        Ok(Some(MatchReason::UnknownDirectory)) | Err(_) if has_exited(dir) => None,
        Ok(why) => why,
        Err(errno) => Some(MatchReason::Unreadable(errno)),
    }
}

#[cfg(test)]
mod tests;
