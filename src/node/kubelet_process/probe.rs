//! Determines whether a kubelet process works on this node's pods.
//!
//! It walks the root file system of that process, which may contain anything: symlink loops, mounts of a dead server. So the walk
//! has its own thread, which is abandoned when it hangs. A failed walk through a foreign root proves nothing.

use std::{
    collections::BTreeMap,
    fs,
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{RecvTimeoutError, sync_channel},
    },
    thread,
    time::Duration,
};

use nix::errno::Errno;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    arguments::Arguments,
    evidence,
    flags::{DEFAULT_ROOT, has_our_paths},
    kind::Kind,
    process::{LocalKubelet, MatchReason},
    root,
};
use crate::node::{fault, mounts::MountTable, procfs::Stat};

/// Root of the host: the agent runs in the host's mount namespace, or refuses to run.
const HOST: &str = "/";
/// Longer walks count as hanging. It is less than the age at which a probe of all processes expires, except in unit tests,
/// which also run on busy machines.
pub(super) const WALK_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 2 });
/// Time for a walk after others have used up that of the search. The attempts of many processes must not make a search so long that
/// its result expires.
const MIN_WALK_TIMEOUT: Duration = Duration::from_millis(50);
/// Threads that may hang at a time. Unit tests share them.
const MAX_HANGING: usize = if cfg!(test) { 100 } else { 8 };

/// A process, by its directory in procfs and when it was started.
type Process = (PathBuf, Option<Duration>);

/// Walks in progress, each with whether it is known to be in the host's root.
static RUNNING_WALKS: Mutex<BTreeMap<Process, Arc<AtomicBool>>> = Mutex::new(BTreeMap::new());

/// Why a probe has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WalkError {
    /// The host, this agent or procfs failed: the process may be a kubelet.
    Host(Errno),
    /// It failed in a foreign root file system, which the process controls.
    ForeignRoot,
}

/// A process, and the kubelet of this node.
pub(super) struct Input {
    pub kind: Kind,
    /// Its directory in procfs.
    pub dir: PathBuf,
    pub arguments: Vec<u8>,
    /// Directories below which it listens on a kubelet's sockets, as that process sees them.
    pub listens_below: Vec<PathBuf>,
    pub local: LocalKubelet,
}

/// Runs `answer` on a thread and waits for it until then, or for [`MIN_WALK_TIMEOUT`]. A process has at most one such thread.
fn on_a_thread<T: Send + 'static>(
    dir: &Path,
    until: Instant,
    answer: impl FnOnce(&AtomicBool) -> Result<T, WalkError> + Send + 'static,
) -> Result<T, WalkError> {
    let hangs = |is_in_host_root: &AtomicBool| match is_in_host_root.load(Ordering::Acquire) {
        true => WalkError::Host(Errno::ETIMEDOUT),
        false => WalkError::ForeignRoot,
    };
    // PIDs are reused.
    let process = (dir.to_owned(), Stat::read(dir).map(|stat| stat.start));
    // Known before the walk, however long that takes.
    let is_in_host_root = Arc::new(AtomicBool::new(has_our_paths(&dir.with_file_name(""), dir)));
    let guard = {
        let mut under_way = RUNNING_WALKS.lock();
        if let Some(is_in_host_root) = under_way.get(&process) {
            return Err(hangs(is_in_host_root));
        }
        if under_way.len() >= MAX_HANGING {
            return Err(hangs(&is_in_host_root));
        }
        under_way.insert(process.clone(), Arc::clone(&is_in_host_root));
        RunningWalk(process)
    };
    let (sender, receiver) = sync_channel(2);
    let thread_flag = Arc::clone(&is_in_host_root);
    let thread = thread::Builder::new().name("kubelet-probe".to_owned());
    let started = thread.spawn(move || {
        // The receiver is dropped after a timeout.
        sender.send(None).ok();
        let answer = answer(&thread_flag);
        drop(guard);
        sender.send(Some(answer)).ok();
    });
    if let Err(error) = started {
        return Err(WalkError::Host(fault::errno(&error)));
    }
    // A thread that has not even started lacks CPU time.
    if receiver.recv_timeout(WALK_TIMEOUT).is_err() {
        return Err(WalkError::Host(Errno::ETIMEDOUT));
    }
    let left = until.saturating_duration_since(Instant::now());
    match receiver.recv_timeout(left.max(MIN_WALK_TIMEOUT)) {
        Ok(Some(answer)) => answer,
        Ok(None) | Err(RecvTimeoutError::Disconnected) => Err(WalkError::Host(Errno::ECANCELED)),
        Err(RecvTimeoutError::Timeout) => Err(hangs(&is_in_host_root)),
    }
}

/// Removes a walk from the list when it ends, also by a panic.
struct RunningWalk(Process);

impl Drop for RunningWalk {
    fn drop(&mut self) {
        RUNNING_WALKS.lock().remove(&self.0);
    }
}

// === impl Input ===

impl Input {
    /// Why the process counts as a kubelet of this node; `None` if it is none. All walks of one search have the time until then.
    ///
    /// # Errors
    /// When that is unknown because of the host or of this agent.
    pub fn probe(self, until: Instant) -> Result<Option<MatchReason>, Errno> {
        if let Kind::Wrapper(subcommands) = self.kind
            && !Arguments(&self.arguments).runs_kubelet(subcommands)
        {
            return Ok(None);
        }
        let input = Arc::new(self);
        let on_thread = Arc::clone(&input);
        let is_mounted = || {
            let roots = input.roots();
            roots.iter().any(|root| is_mounted(&input.dir, root, &input.local))
        };
        let (why, is_configured) = match on_a_thread(&input.dir, until, move |flag| on_thread.answer(flag)) {
            Ok(None) => return Ok(None),
            Ok(Some((why, is_configured))) => (Ok(why), is_configured),
            Err(WalkError::Host(errno)) => (Err(errno), false),
            Err(WalkError::ForeignRoot) if is_mounted() => (Ok(MatchReason::SameDirectory), false),
            Err(WalkError::ForeignRoot) => return Ok(None),
        };
        if input.kind == Kind::Candidate
            && !is_configured
            && !evidence::is_shown(&input.dir, &Arguments(&input.arguments), &input.local)?
        {
            return Ok(None);
        }
        why.map(Some)
    }

    /// Why it counts, and whether its configuration is a kubelet's (read only if needed).
    fn answer(&self, is_in_host_root: &AtomicBool) -> Result<Option<(MatchReason, bool)>, WalkError> {
        let arguments = Arguments(&self.arguments);
        let Some(why) = self.match_local_kubelet(is_in_host_root)? else {
            return Ok(None);
        };
        let is_configured = self.kind == Kind::Candidate
            && !arguments.has_kubelet_flag()
            && evidence::is_configured(&self.dir, &arguments);
        Ok(Some((why, is_configured)))
    }

    fn match_local_kubelet(&self, is_in_host_root: &AtomicBool) -> Result<Option<MatchReason>, WalkError> {
        let host = Path::new(HOST);
        let their_root = root::base(&self.dir, host).map_err(|errno| classify_proc_error(errno, false))?;
        let identity = root::identity_of(&their_root).map_err(|errno| classify_walk_error(errno, false))?;
        let is_host_root = root::local_identity(host).is_none_or(|local| local == identity);
        is_in_host_root.store(is_host_root, Ordering::Release);
        let is_wrapper = matches!(self.kind, Kind::Wrapper(_));
        let arguments = Arguments(&self.arguments);
        // In the host's root its kubelet may have any directory. In another root, as of a container or a snap, our directory is
        // there by the kubelet's default name or by ours, or it is another node's kubelet.
        if is_host_root && is_wrapper && arguments.value("root-dir").is_none() {
            return Ok(Some(MatchReason::UnknownDirectory));
        }
        let mut failed = None;
        for path in self.roots() {
            let base = root::base(&self.dir, &path).map_err(|errno| classify_proc_error(errno, is_host_root))?;
            match self.is_local_root(&base, &path, is_host_root) {
                Ok(true) => return Ok(Some(MatchReason::SameDirectory)),
                Ok(false) => {}
                Err(error) => failed = Some(error),
            }
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        // Our --kubelet-root may be wrong.
        let same_runtime = || {
            arguments.runtime().is_none_or(|path| {
                let local = &self.local.runtime;
                path == local
                    || root::local_identity(path).is_some_and(|theirs| Some(theirs) == root::local_identity(local))
            })
        };
        // A program that only listens on a socket of such a name elsewhere on the machine is no kubelet.
        let is_kubelet = match self.kind {
            Kind::Kubelet | Kind::Candidate => true,
            Kind::Wrapper(_) => false,
            Kind::Listener => arguments.has_kubelet_flag(),
        };
        let counts = is_kubelet && is_host_root && same_runtime();
        Ok(counts.then_some(MatchReason::SameNode))
    }

    /// Directories that may be its root directory, by its command line.
    fn roots(&self) -> Vec<PathBuf> {
        let local = &self.local.root;
        match (Arguments(&self.arguments).path("root-dir"), self.kind) {
            (Some(given), _) => vec![given],
            (None, Kind::Kubelet | Kind::Candidate) => vec![DEFAULT_ROOT.into()],
            (None, Kind::Listener) => self.listens_below.clone(),
            // The flag of the agent may be a relative path.
            (None, Kind::Wrapper(_)) => [Path::new(DEFAULT_ROOT), local.path(), local.given()]
                .map(|path| Path::new(HOST).join(path))
                .into(),
        }
    }

    /// Whether the root directory at `path` is the agent's `--kubelet-root`.
    fn is_local_root(&self, base: &OwnedFd, path: &Path, is_host_root: bool) -> Result<bool, WalkError> {
        let local = &self.local.root;
        let (Some(our_root), Some(our_pods)) = (root::local_identity(local.path()), root::local_identity(local.pods()))
        else {
            return Err(WalkError::Host(Errno::ENOENT));
        };
        let identity = |path: &Path| match root::identity(base, path) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(errno) => Err(classify_walk_error(errno, is_host_root)),
        };
        match identity(&path.join("pods"))? {
            Some(pods) => Ok(pods == our_pods),
            // A kubelet that is starting has no pods directory yet.
            None => Ok(identity(path)? == Some(our_root)),
        }
    }
}

/// Classifies a failure to open the process's root or working directory in procfs.
fn classify_proc_error(errno: Errno, is_host_root: bool) -> WalkError {
    match errno {
        Errno::ENOENT | Errno::ESRCH | Errno::EACCES | Errno::EPERM => WalkError::Host(errno),
        errno => classify_walk_error(errno, is_host_root),
    }
}

/// Classifies a failure of the walk.
fn classify_walk_error(errno: Errno, is_host_root: bool) -> WalkError {
    match errno {
        Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM => WalkError::Host(errno),
        errno if is_host_root => WalkError::Host(errno),
        _ => WalkError::ForeignRoot,
    }
}

/// Whether our directory is at that path in the process's mount namespace, by its mountinfo. Walks nothing.
fn is_mounted(dir: &Path, path: &Path, local: &LocalKubelet) -> bool {
    let table = |process: &Path| MountTable::parse(&fs::read(process.join("mountinfo")).ok()?, HOST.as_ref()).ok();
    let (Some(theirs), Some(own)) = (table(dir), table(&dir.with_file_name("self"))) else {
        return false;
    };
    let located = |table: &MountTable, path: &Path| {
        let mount = table.mount_containing(path).filter(|mount| !mount.root_deleted)?;
        Some((mount.device, mount.root.join(path.strip_prefix(&mount.path).ok()?)))
    };
    let same = |path: &Path, our: &Path| located(&theirs, path).is_some_and(|it| Some(it) == located(&own, our));
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    path.is_absolute()
        && path.components().all(is_plain)
        && (same(&path.join("pods"), local.root.pods()) || same(path, local.root.path()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    const SHORT: Duration = Duration::from_millis(300);

    /// A walk that hangs until the sender is dropped.
    fn hangs(process: &Path, is_host_root: bool, until: Instant) -> (Sender<()>, Result<u8, WalkError>) {
        let (release, hang) = channel::<()>();
        let failed = on_a_thread(process, until, move |flag| {
            flag.store(is_host_root, Ordering::Release);
            hang.recv().ok();
            Ok(1)
        });
        (release, failed)
    }

    #[test]
    fn hanging_walk_is_abandoned_and_counts_only_in_the_hosts_root() {
        let proc = tempfile::tempdir().unwrap();
        let process = |pid: &str| proc.path().join(pid);
        let (release, failed) = hangs(&process("5"), false, Instant::now() + SHORT);
        assert_eq!(failed, Err(WalkError::ForeignRoot));
        // Its thread must store the flag before the timeout, also on a busy machine.
        let (second_release, failed) = hangs(&process("6"), true, Instant::now() + 10 * SHORT);
        assert_eq!(failed, Err(WalkError::Host(Errno::ETIMEDOUT)));
        let again = |pid: &str| on_a_thread(&process(pid), Instant::now() + WALK_TIMEOUT, |_| Ok(2));
        assert_eq!(again("5"), Err(WalkError::ForeignRoot), "no second thread hangs there");
        assert_eq!(again("6"), Err(WalkError::Host(Errno::ETIMEDOUT)));
        assert_eq!(again("7"), Ok(2), "other processes are probed");
        // Another process has its number by now.
        fs::create_dir(process("5")).unwrap();
        fs::write(
            process("5").join("stat"),
            format!("5 (kube) let) S 1 {}77 0", "0 ".repeat(17)),
        )
        .unwrap();
        let start = Stat::read(&process("5")).map(|stat| stat.start);
        assert_eq!(start, Some(Duration::from_millis(770)));
        assert_eq!(again("5"), Ok(2));
        fs::remove_file(process("5").join("stat")).unwrap();
        drop((release, second_release));
        while again("5").is_err() || again("6").is_err() {
            thread::yield_now();
        }
    }

    /// Otherwise two processes would make the search longer than its result counts.
    #[test]
    fn hanging_walks_of_one_search_share_its_time() {
        let proc = tempfile::tempdir().unwrap();
        let until = Instant::now() + WALK_TIMEOUT / 60;
        let began = Instant::now();
        let hanging: Vec<_> = (100..130)
            .map(|pid| hangs(&proc.path().join(pid.to_string()), false, until))
            .collect();
        assert!(began.elapsed() < WALK_TIMEOUT / 4, "{:?}", began.elapsed());
        assert!(hanging.iter().all(|(_, failed)| *failed == Err(WalkError::ForeignRoot)));
    }

    #[test]
    fn resource_shortage_is_no_failure_of_a_foreign_root() {
        for errno in [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM] {
            assert_eq!(classify_walk_error(errno, false), WalkError::Host(errno));
        }
        for errno in [
            Errno::ELOOP,
            Errno::ENAMETOOLONG,
            Errno::EIO,
            Errno::ESTALE,
            Errno::EACCES,
        ] {
            assert_eq!(classify_walk_error(errno, false), WalkError::ForeignRoot);
            assert_eq!(classify_walk_error(errno, true), WalkError::Host(errno));
        }
        assert_eq!(
            classify_proc_error(Errno::EACCES, false),
            WalkError::Host(Errno::EACCES)
        );
    }
}
