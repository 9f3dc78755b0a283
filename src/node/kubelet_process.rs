//! Kubelet processes that work on the same pods as the agent. While one exists, effects are blocked.
//!
//! A process is judged by facts that it cannot fake: capabilities, namespaces, mounts and sockets. Its name and its command line
//! only make it a candidate. A failed walk through its own root file system proves nothing. A process of any name is a kubelet if
//! it listens on a socket that only a kubelet has, below the kubelet's root directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tokio::time::Instant;

use super::{fault, lock::readable, procfs};

pub mod arguments;
mod evidence;
pub mod flags;
mod kind;
mod probe;
mod process;
mod root;
mod sockets;

pub use evidence::is_kubelets_answer;
use kind::{Kind, has_exited, kind, may_mount};
use probe::{Input, WALK_TIMEOUT};
pub use process::{KubeletProcess, LocalKubelet, MatchReason};
use sockets::Listeners;

/// All kubelets that count, from the files of `proc`, by pid. It reads a file of every process: any of them may have
/// become a kubelet by exec. Where no kubelet counts by its name, and a kubelet's socket listens, it searches for the process that
/// has that socket. Walks through root file systems that hang share two seconds.
///
/// # Errors
/// When none was seen and not all could be read, as without descriptors or memory.
pub fn find(proc: &Path, local: &LocalKubelet) -> io::Result<Vec<KubeletProcess>> {
    let pids = procfs::pids(proc)?;
    let search = Search::new(proc, local);
    let named = collect(&pids, |pid| search.by_name(pid));
    if named.as_ref().is_ok_and(|found| !found.is_empty()) {
        return named;
    }
    let listeners = evidence::listeners(proc)?;
    if listeners.is_empty() {
        return named;
    }
    match collect(&pids, |pid| search.by_socket(pid, &listeners)) {
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
pub fn with_kubelet_name(proc: &Path, pids: Vec<i32>) -> io::Result<Vec<i32>> {
    let mut named = Vec::new();
    for pid in pids {
        named.extend(kind(&procfs::dir(proc, pid))?.map(|_| pid));
    }
    Ok(named)
}

/// Checks processes that have just executed a program. Reads nothing of any other process.
///
/// # Errors
/// When what one of them is cannot be read.
pub fn check_started(proc: &Path, pids: &[i32], local: &LocalKubelet) -> io::Result<Started> {
    let (mut started, search) = (Started::Other, Search::new(proc, local));
    for &pid in pids {
        let dir = procfs::dir(proc, pid);
        let Some(kind) = search.candidate(&dir)? else { continue };
        match search.judge(pid, kind, &dir, Vec::new()) {
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
    let search = Search::new(proc, local);
    match search.by_name(pid)? {
        None => search.by_socket(pid, &evidence::listeners(proc)?),
        found => Ok(found),
    }
}

/// A search for kubelets that count.
struct Search<'a> {
    proc: &'a Path,
    local: &'a LocalKubelet,
    /// When its walks have to be done.
    until: Instant,
}

// === impl Search ===

impl<'a> Search<'a> {
    fn new(proc: &'a Path, local: &'a LocalKubelet) -> Self {
        let until = Instant::now() + WALK_TIMEOUT;
        Self { proc, local, until }
    }

    /// The process with this pid, if it is a kubelet that counts under any name: it has one of these listening sockets.
    fn by_socket(&self, pid: i32, listeners: &Listeners) -> io::Result<Option<KubeletProcess>> {
        let dir = procfs::dir(self.proc, pid);
        if listeners.is_empty() || !may_mount(self.proc, &dir) {
            return Ok(None);
        }
        let roots = evidence::roots(&dir, listeners)?;
        if roots.is_empty() {
            return Ok(None);
        }
        Ok(self.judge(pid, Kind::Listener, &dir, roots))
    }

    /// The process with this pid, if it is a kubelet that counts and has the name of one.
    fn by_name(&self, pid: i32) -> io::Result<Option<KubeletProcess>> {
        let dir = procfs::dir(self.proc, pid);
        let kind = self.candidate(&dir)?;
        Ok(kind.and_then(|kind| self.judge(pid, kind, &dir, Vec::new())))
    }

    /// The kind of a process that has a kubelet's name and may be one.
    fn candidate(&self, dir: &Path) -> io::Result<Option<Kind>> {
        let kind = kind(dir)?;
        // A kubelet mounts, so a process that cannot mount is no kubelet, even with a kubelet's name and arguments.
        Ok(kind.filter(|_| may_mount(self.proc, dir)))
    }

    /// The process, if it counts: it does not work elsewhere, and has not ended. It listens on a kubelet's sockets below these
    /// directories.
    fn judge(&self, pid: i32, kind: Kind, dir: &Path, listens_below: Vec<PathBuf>) -> Option<KubeletProcess> {
        let arguments = fs::read(dir.join("cmdline"));
        let command = readable(arguments.as_deref().unwrap_or_default());
        let arguments = arguments.map_err(|error| fault::errno(&error));
        let probed = arguments.and_then(|arguments| {
            let (dir, local) = (dir.to_owned(), self.local.clone());
            Input {
                kind,
                dir,
                arguments,
                listens_below,
                local,
            }
            .probe(self.until)
        });
        let why = match probed {
            Ok(None) => return None,
            Ok(Some(MatchReason::UnknownDirectory)) | Err(_) if has_exited(dir) => return None,
            Ok(Some(why)) => why,
            Err(errno) => MatchReason::Unreadable(errno),
        };
        Some(KubeletProcess {
            pid,
            command,
            why,
            is_wrapper: matches!(kind, Kind::Wrapper(_)),
        })
    }
}

#[cfg(test)]
mod tests;
