//! Notices changes of what a failed attempt waits for: once a second, each is compared with the last look.
//!
//! Looks need no descriptors and no limits of the kernel, whatever the number of waiting pods, and see a file system that reports
//! no changes. A change between two attempts is not missed: the looks of one wait are kept for the next one.

use std::{
    collections::BTreeMap,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::fs::FileType;
use tokio::time::sleep;

use super::{
    dirs::{Dir, EntryInfo},
    mounts::{MountTable, Mounted, Mounts},
    processes,
    threads::Threads,
};
use crate::model::waits_for::WaitsFor;

/// Between two looks. Also the least pause between attempts that changes start.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of entries of a directory whose attributes are read.
const MAX_ENTRIES: usize = 256;

/// Looks at what one pod waits for.
pub struct ChangeWatch {
    /// All mounts of the node.
    mounts: Arc<Mounts>,
    proc: PathBuf,
    threads: Threads,
    seen: Look,
}

/// A digest of each thing, as it was at one time.
type Look = BTreeMap<WaitsFor, u64>;

// === impl ChangeWatch ===

impl ChangeWatch {
    /// A watch of this node. `mounts` are all its mounts; `threads` read.
    pub fn new(mounts: Arc<Mounts>, proc: PathBuf, threads: Threads) -> Self {
        Self {
            mounts,
            proc,
            threads,
            seen: Look::new(),
        }
    }

    /// Returns when one of these has changed since the last look, a second from now at the earliest. Pends forever without any.
    pub async fn wait_for_change(&mut self, waits_for: &[WaitsFor]) {
        if waits_for.is_empty() {
            return std::future::pending().await;
        }
        self.seen.retain(|it, _| waits_for.contains(it));
        if let Some(first) = self.look(waits_for).await {
            for (it, state) in first {
                self.seen.entry(it).or_insert(state);
            }
        }
        loop {
            sleep(INTERVAL).await;
            let Some(now) = self.look(waits_for).await else {
                continue;
            };
            if now != self.seen {
                self.seen = now;
                return;
            }
        }
    }

    /// `None` if no thread is free.
    async fn look(&self, waits_for: &[WaitsFor]) -> Option<Look> {
        let (mounts, proc, wanted) = (Arc::clone(&self.mounts), self.proc.clone(), waits_for.to_vec());
        let look = self.threads.run_blocking(move || {
            let reads_table = wanted
                .iter()
                .any(|it| matches!(it, WaitsFor::Mounts(_) | WaitsFor::Path(_)));
            let table = reads_table.then(|| mounts.read().ok()).flatten();
            let digest = |it: &WaitsFor| digest(it, table.as_deref(), &proc);
            wanted.iter().map(|it| (it.clone(), digest(it))).collect()
        });
        look.await.ok()
    }
}

fn digest(of: &WaitsFor, table: Option<&MountTable>, proc: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    match of {
        WaitsFor::Exit(pid) => processes::running_since(proc, *pid).ok().hash(&mut hasher),
        WaitsFor::MountsOf(pid) => fs::read(proc.join(pid.to_string()).join("mountinfo"))
            .ok()
            .hash(&mut hasher),
        WaitsFor::Mounts(path) => table.map(|table| mounts(table, path)).hash(&mut hasher),
        // Its server may not answer.
        WaitsFor::Path(path) if table.is_none_or(|table| is_on_server(table, path)) => {}
        WaitsFor::Path(path) => entry(path).hash(&mut hasher),
    }
    hasher.finish()
}

/// The mounts at, above and below a path.
fn mounts(table: &MountTable, path: &Path) -> Vec<(u64, PathBuf)> {
    let above = path.ancestors().skip(1).flat_map(|above| table.mounts_on(above));
    let all = table.mounts_at_or_below(&[path]).into_iter().chain(above);
    all.map(|mount| (mount.id, mount.path)).collect()
}

/// Whether a file system with a server is mounted at or above a path.
fn is_on_server(table: &MountTable, path: &Path) -> bool {
    let mut mounts = path.ancestors().flat_map(|at| table.mounts_on(at));
    mounts.any(|mount| Mounted::from(&mount).has_server())
}

type Attributes = (u64, (i64, u32), (i64, u32));

/// Attributes of a file or directory and of a directory's entries; `None` if it does not exist. A directory on which something is
/// mounted is not entered.
fn entry(path: &Path) -> Option<(Attributes, Vec<Attributes>)> {
    let parent = Dir::open(&path.parent()?.canonicalize().ok()?).ok()??;
    let name = path.file_name()?;
    let found = parent.stat(name).ok()??;
    let inside = (found.kind == FileType::Directory)
        .then(|| parent.open_below(name).ok().flatten())
        .flatten();
    let entries = inside.map(|dir| {
        let mut names = dir.names().unwrap_or_default();
        names.sort();
        let stat = |name| dir.stat(name).ok().flatten().map(attributes);
        names.iter().take(MAX_ENTRIES).filter_map(|name| stat(name)).collect()
    });
    Some((attributes(found), entries.unwrap_or_default()))
}

fn attributes(found: EntryInfo) -> Attributes {
    (found.inode, found.modified, found.changed)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, process::Command};

    use nix::{
        sys::wait::{Id, WaitPidFlag, waitid},
        unistd::Pid,
    };
    use tokio::time::{Instant, timeout};

    use super::*;

    fn watch(table: &Path) -> ChangeWatch {
        ChangeWatch::new(Arc::new(Mounts::new(table, "/")), "/proc".into(), Threads::default())
    }

    /// Waits until the watch returns, after it has looked once.
    async fn changed_by(watch: &mut ChangeWatch, waits_for: &[WaitsFor], change: impl FnOnce()) {
        let unchanged = timeout(Duration::from_secs(3600), watch.wait_for_change(waits_for)).await;
        assert!(unchanged.is_err(), "{waits_for:?} has not changed");
        change();
        let began = Instant::now();
        watch.wait_for_change(waits_for).await;
        assert!(began.elapsed() <= 2 * INTERVAL, "{waits_for:?}: {:?}", began.elapsed());
    }

    // The paused clock does not advance while a thread looks.
    #[tokio::test(start_paused = true)]
    async fn change_of_a_path_is_noticed_whatever_it_is() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a");
        let path = |name: &str| dir.join(name);
        let mut watch = watch(Path::new("/dev/null"));
        let on_dir = [WaitsFor::Path(dir.clone())];
        changed_by(&mut watch, &on_dir, || fs::create_dir(&dir).unwrap()).await;
        changed_by(&mut watch, &on_dir, || fs::create_dir(path("sub")).unwrap()).await;
        let below_sub = || drop(UnixListener::bind(path("sub/s.sock")).unwrap());
        changed_by(&mut watch, &on_dir, below_sub).await;
        let on_socket = [WaitsFor::Path(path("sub/s.sock"))];
        let again = || {
            fs::remove_file(path("sub/s.sock")).unwrap();
            below_sub();
        };
        changed_by(&mut watch, &on_socket, again).await;
        changed_by(&mut watch, &on_socket, || {
            fs::rename(&dir, temp.path().join("b")).unwrap();
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn path_on_a_mount_with_a_server_is_not_accessed() {
        let temp = tempfile::tempdir().unwrap();
        let (table, dir) = (temp.path().join("mountinfo"), temp.path().join("nas"));
        fs::create_dir(&dir).unwrap();
        fs::write(&table, format!("9 1 0:9 / {} rw - nfs4 nas:/a rw\n", dir.display())).unwrap();
        let (mut watch, waits_for) = (watch(&table), [WaitsFor::Path(dir.join("sub/v"))]);
        let wait = Duration::from_secs(60);
        assert!(timeout(wait, watch.wait_for_change(&waits_for)).await.is_err());
        fs::create_dir_all(dir.join("sub/v")).unwrap();
        assert!(timeout(wait, watch.wait_for_change(&waits_for)).await.is_err());
        changed_by(&mut watch, &waits_for, || fs::write(&table, "").unwrap()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn mount_between_two_waits_is_a_change_and_one_elsewhere_is_none() {
        let temp = tempfile::tempdir().unwrap();
        let table = temp.path().join("mountinfo");
        let line = |id: u32, at: &str| format!("{id} 1 0:9 / {at} rw - tmpfs none rw\n");
        fs::write(&table, line(9, "/kubelet/pods/u/v")).unwrap();
        let mut watch = watch(&table);
        let pod = [WaitsFor::Mounts("/kubelet/pods/u".into())];
        let elsewhere = || fs::write(&table, line(9, "/kubelet/pods/u/v") + &line(10, "/other")).unwrap();
        let unchanged = timeout(Duration::from_secs(60), watch.wait_for_change(&pod));
        assert!(unchanged.await.is_err());
        elsewhere();
        changed_by(&mut watch, &pod, || fs::write(&table, line(10, "/other")).unwrap()).await;
        changed_by(&mut watch, &pod, || fs::write(&table, line(11, "/kubelet")).unwrap()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn exit_of_one_process_is_a_change() {
        let mut sleeps = ["600", "601"].map(|time| Command::new("sleep").arg(time).spawn().unwrap());
        let pids = sleeps.each_ref().map(|process| process.id().cast_signed());
        let mut watch = watch(Path::new("/dev/null"));
        let exits = pids.map(WaitsFor::Exit);
        // A zombie has exited. The paused clock does not wait for the kill.
        let exit = || {
            sleeps[1].kill().unwrap();
            let zombie = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
            waitid(Id::Pid(Pid::from_raw(pids[1])), zombie).unwrap();
        };
        changed_by(&mut watch, &exits, exit).await;
        for process in &mut sleeps {
            process.kill().ok();
            process.wait().unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn constant_changes_start_one_attempt_a_second() {
        let temp = tempfile::tempdir().unwrap();
        let mut watch = watch(Path::new("/dev/null"));
        let waits_for = [WaitsFor::Path(temp.path().into())];
        let began = Instant::now();
        for at in 0..10 {
            fs::write(temp.path().join(at.to_string()), "").unwrap();
            let changed = timeout(Duration::from_secs(5), watch.wait_for_change(&waits_for)).await;
            assert!(changed.is_ok() || at == 0, "the first look knows no earlier one");
        }
        assert!(began.elapsed() >= Duration::from_secs(9), "{:?}", began.elapsed());
    }
}
