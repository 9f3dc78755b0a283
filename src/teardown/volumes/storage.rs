//! What volumes are taken away with.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use futures::future::BoxFuture;
use tokio::sync::OwnedMutexGuard;

use crate::node::{
    csi_files,
    effects::Effects,
    fault::{Cause, Fault},
    host::Host,
    kubelet_root::KubeletRoot,
    mounts::{Mount, Mounts},
    plugins::{Csi, DriverUnavailable, Registrars, registry::DIRECTORY},
    superblock::FileSystem,
};

/// A driver that cannot be asked.
pub(super) struct NoDriver {
    pub why: DriverUnavailable,
    /// It does not run: each socket by which it could be reached has nobody behind it.
    pub certain: bool,
}

/// The node's mounts, directories and drivers, and what the API server knows of its volumes.
pub struct Storage {
    /// The kubelet's directory.
    pub root: KubeletRoot,
    /// What is mounted below the directory of its pods.
    pub mounts: Arc<Mounts>,
    /// All that is mounted on this machine: read only where a volume has a part outside of its pod's directory.
    pub all_mounts: Arc<Mounts>,
    /// The gate for effects.
    pub effects: Effects,
    /// Where the kernel lists block devices.
    pub sys_block: PathBuf,
    /// Where processes are listed.
    pub proc: PathBuf,
    /// What the API server knows.
    pub cluster: Arc<dyn Cluster>,
    /// One at a time.
    pub turns: Turns,
    /// What drivers have said of themselves.
    pub registrars: Registrars,
}

/// What the API server knows of this node's volumes.
pub trait Cluster: Send + Sync {
    /// The CSI driver and volume handle behind the PersistentVolume of this name, while this node may read it.
    fn persistent_volume(&self, name: String) -> BoxFuture<'static, Result<Option<(String, String)>, String>>;

    /// The node's `volumesInUse`.
    fn in_use(&self) -> BoxFuture<'static, Result<Vec<String>, String>>;

    /// Takes a volume out of the node's `volumesInUse`: from then on it may be detached.
    fn out_of_use(&self, volume: String) -> BoxFuture<'static, Result<(), String>>;
}

/// Turns of those who work on the same volume: whoever comes second finds what the first has left.
#[derive(Default)]
pub struct Turns {
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// By staging directory: file systems that are unmounted there and may still be active.
    lingering: Mutex<HashMap<PathBuf, FileSystem>>,
}

/// No API server: of a volume nothing is known but what lies on the node, and nobody waits for it.
pub struct NoCluster;

// === impl Storage ===

impl Storage {
    /// The volumes of pods below this kubelet's root, on this host.
    pub fn new(host: &Host, root: &KubeletRoot, effects: &Effects, cluster: Arc<dyn Cluster>) -> Self {
        Self {
            mounts: Arc::new(Mounts::new(&host.mountinfo, root.pods())),
            all_mounts: Arc::new(Mounts::new(&host.mountinfo, "/")),
            root: root.clone(),
            effects: effects.clone(),
            sys_block: host.sys_block.clone(),
            proc: host.proc.clone(),
            cluster,
            turns: Turns::default(),
            registrars: Registrars::default(),
        }
    }

    /// A path as it is below the kubelet's root, which other mount namespaces may have elsewhere.
    pub fn below_root<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(self.root.path()).unwrap_or(path)
    }

    /// Does work that may block, when it is its turn.
    pub async fn work<T: Send + 'static>(
        self: &Arc<Self>,
        what: impl AsRef<Path>,
        work: impl FnOnce(&Self) -> Result<T, Vec<Fault>> + Send + 'static,
    ) -> Result<T, Vec<Fault>> {
        let storage = Arc::clone(self);
        let result = self.effects.run_blocking(move |_| work(&storage)).await;
        result.unwrap_or_else(|why| Err(vec![Fault::new("work on", what, why)]))
    }

    /// As [`Self::work`], for what has one way to fail.
    pub(in crate::teardown) async fn look<T: Send + 'static>(
        self: &Arc<Self>,
        what: impl AsRef<Path>,
        look: impl FnOnce(&Self) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Vec<Fault>> {
        self.work(what, |storage| look(storage).map_err(|fault| vec![fault]))
            .await
    }

    /// Removes the volume from `volumesInUse`; `place` is where it was mounted. It fails while anything is mounted in a directory
    /// named by the volume's digest. Only the mount table shows all of these.
    pub(super) async fn out_of_use(self: &Arc<Self>, volume: String, place: &Path) -> Result<(), Vec<Fault>> {
        if let Some((driver, digest)) = csi_files::staged_as(&volume) {
            self.look(place, move |storage| {
                let table = storage.all_mounts.read()?;
                let all = storage.root.path().join(csi_files::STAGING);
                let is_staged = |it: &&Mount| match it.path.strip_prefix(&all) {
                    Ok(below) => below.starts_with(Path::new(&driver).join(&digest)),
                    Err(_) => it.path.to_string_lossy().contains(&digest),
                };
                match table.all().iter().find(is_staged) {
                    None => Ok(()),
                    Some(mount) => Err(Fault::new("take out of volumesInUse", &mount.path, Cause::StillMounted)),
                }
            })
            .await?;
        }
        let out = self.cluster.out_of_use(volume).await;
        out.map_err(|why| in_words("take out of volumesInUse", place, &why))
    }

    /// The CSI driver of this name.
    pub(super) async fn csi(&self, driver: &str) -> Result<Result<Csi, NoDriver>, Vec<Fault>> {
        let drivers = self
            .registrars
            .read(&self.root.path().join(DIRECTORY), &self.effects)
            .await;
        let drivers = drivers.map_err(|fault| vec![fault])?;
        Ok(drivers.csi(driver).await.map_err(|why| NoDriver {
            why,
            certain: drivers.faults.is_empty()
                && drivers
                    .unresponsive
                    .iter()
                    .all(|unresponsive| unresponsive.error.is_unreachable()),
        }))
    }
}

// === impl Turns ===

impl Turns {
    /// Waits until nobody else works on what is called so.
    pub async fn take(&self, what: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(what.to_owned()).or_default())
        };
        turn.lock_owned().await
    }

    /// Remembers the file system that was staged here until it is known to be active nowhere: it is no longer in the mount
    /// table of this namespace.
    pub(super) fn set_lingering(&self, staged: &Path, file_system: Option<FileSystem>) {
        let mut lingering = self.lingering.lock().unwrap_or_else(PoisonError::into_inner);
        match file_system {
            Some(file_system) => drop(lingering.insert(staged.to_owned(), file_system)),
            None => drop(lingering.remove(staged)),
        }
    }

    /// The file system that was staged here and may still be active.
    pub(super) fn lingering(&self, staged: &Path) -> Option<FileSystem> {
        let lingering = self.lingering.lock().unwrap_or_else(PoisonError::into_inner);
        lingering.get(staged).cloned()
    }
}

// === impl NoCluster ===

impl Cluster for NoCluster {
    fn persistent_volume(&self, _name: String) -> BoxFuture<'static, Result<Option<(String, String)>, String>> {
        Box::pin(async { Ok(None) })
    }

    fn in_use(&self) -> BoxFuture<'static, Result<Vec<String>, String>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn out_of_use(&self, _volume: String) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

/// A failure in words.
pub(super) fn in_words(verb: &'static str, path: impl AsRef<Path>, why: &dyn std::fmt::Display) -> Vec<Fault> {
    vec![Fault::new(verb, path, Cause::Message(why.to_string()))]
}
