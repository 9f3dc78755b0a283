//! A separate mount namespace for each test, with a kubelet directory in it.

use std::{
    fmt::Debug,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use pod_teardown::{
    journal::Journal,
    node::{effects::Effects, fault::Fault, kubelet_root::KubeletRoot, mounts::Mounts, pod_dir::PodDir},
    teardown::{
        boundary::NoApi,
        volumes::{
            self, Approved,
            storage::{Storage, VolumeLocks},
        },
    },
};
use tokio::time::Instant;

pub const UID: &str = "5f0d7f0e-1b1c-4f7e-8d2b-6a9c1c7e0a01";

/// A kubelet's directory on its own file system.
pub struct Space {
    /// A directory outside of the kubelet's, for data that must be kept.
    pub outside: PathBuf,
    pub root: PathBuf,
    pub pod: PodDir,
    pub mounts: Arc<Mounts>,
}

/// The mount table of this thread's namespace. Not /proc/self, which is the main thread's.
pub const MOUNTINFO: &str = "/proc/thread-self/mountinfo";

/// Runs a test on a thread with its own mount namespace, on a new tmpfs that propagates like a real node's root.
pub fn in_own_namespace(test: impl FnOnce(&Space) + Send + 'static) {
    let temp = tempfile::tempdir().unwrap();
    let base = temp.path().canonicalize().unwrap();
    let run = move || {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).expect("these tests need root");
        propagate(Path::new("/"), MsFlags::MS_PRIVATE | MsFlags::MS_REC);
        tmpfs(&base);
        propagate(&base, MsFlags::MS_SHARED);
        test(&Space::at(&base));
    };
    // The namespace and its mounts are removed with the thread.
    if let Err(panic) = thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs async code with all its threads in this thread's mount namespace.
pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// Tears the pod's volumes down. No volume is approved to stay published.
pub async fn tear_down_volumes(pod: &PodDir, storage: &Arc<Storage>) -> Result<(), Vec<Fault>> {
    volumes::tear_down_volumes(pod, storage, &Approved::default()).await
}

/// Retries while it fails: a process that another test starts inherits open files for a moment.
pub async fn soon<T, E: Debug>(mut what: impl AsyncFnMut() -> Result<T, E>) -> T {
    for _ in 0..100 {
        if let Ok(done) = what().await {
            return done;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    what().await.unwrap()
}

/// Waits until this holds, at most a minute: a busy machine may not run another process for seconds.
#[track_caller]
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let late = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < late, "never: {what}");
        block_on(async { tokio::time::sleep(Duration::from_millis(2)).await });
    }
}

#[track_caller]
pub fn assert_precious(path: impl AsRef<Path>) {
    let path = path.as_ref();
    assert_eq!(fs::read_to_string(path).unwrap(), "precious", "{path:?}");
}

pub fn tmpfs(path: &Path) {
    fs::create_dir_all(path).unwrap();
    mount(None::<&str>, path, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
}

pub fn bind(source: &Path, target: &Path) {
    try_bind(source, target).unwrap();
}

pub fn try_bind(source: &Path, target: &Path) -> nix::Result<()> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
}

pub fn propagate(path: &Path, how: MsFlags) {
    mount(None::<&str>, path, None::<&str>, how, None::<&str>).unwrap();
}

pub fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

impl Space {
    fn at(base: &Path) -> Self {
        let root = base.join("kubelet");
        fs::create_dir_all(root.join("pods").join(UID)).unwrap();
        fs::create_dir(base.join("outside")).unwrap();
        let resolved = KubeletRoot::resolve(&root).unwrap();
        Self {
            outside: base.join("outside"),
            pod: PodDir::new(&resolved, UID).unwrap(),
            mounts: Arc::new(Mounts::new(MOUNTINFO, resolved.pods())),
            root,
        }
    }

    pub fn volume(&self, plugin: &str, name: &str) -> PathBuf {
        let path = self
            .pod
            .path()
            .join("volumes")
            .join(format!("kubernetes.io~{plugin}"))
            .join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn marker(&self, name: &str) -> PathBuf {
        let path = self.pod.path().join("plugins/kubernetes.io~empty-dir").join(name);
        write(&path.join("ready"), "");
        path
    }

    /// A subPath bind mount of a directory, as the kubelet creates it.
    pub fn subpath(&self, volume: &str, index: u32, source: &Path) -> PathBuf {
        let path = self.pod.path().join(format!("volume-subpaths/{volume}/app/{index}"));
        fs::create_dir_all(&path).unwrap();
        bind(source, &path);
        path
    }

    /// Storage for tearing down volumes in this namespace.
    pub fn storage(&self, effects: &Effects) -> Arc<Storage> {
        Arc::new(Storage {
            root: KubeletRoot::resolve(&self.root).unwrap(),
            mounts: self.mounts.clone(),
            all_mounts: Arc::new(Mounts::new(MOUNTINFO, "/")),
            effects: effects.clone(),
            sys_block: "/sys/block".into(),
            proc: "/proc".into(),
            api: Arc::new(NoApi),
            locks: VolumeLocks::default(),
            journal: Journal::in_memory(),
        })
    }

    pub fn another_pod(&self) -> PodDir {
        let uid = UID.replace("01", "02");
        fs::create_dir_all(self.root.join("pods").join(&uid)).unwrap();
        PodDir::new(&KubeletRoot::resolve(&self.root).unwrap(), &uid).unwrap()
    }

    /// Unmounts everything of the pod, after the test has released it.
    pub fn unmount_all(&self) {
        let effects = Effects::ungated();
        block_on(soon(async || self.mounts.unmount_all_below(self.pod.path(), &effects)));
    }

    pub fn mounted(&self) -> Vec<PathBuf> {
        self.pod.mounted(&self.mounts.read().unwrap())
    }
}
