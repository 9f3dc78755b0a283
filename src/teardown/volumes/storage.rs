//! Mounts, directories and drivers for the teardown of volumes.

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use futures::future::BoxFuture;
use tokio::sync::OwnedMutexGuard;

use crate::{
    journal::Journal,
    node::{
        csi_files,
        effects::Effects,
        fault::{Cause, Fault},
        host::Host,
        kubelet_root::KubeletRoot,
        mounts::{Mount, Mounts},
        plugins::{Csi, DriverUnavailable, Registry, registry::DIRECTORY},
    },
};

/// Volumes that a user has approved to count as unpublished without their drivers. Each is the `volume` of a
/// [`Cause::DriverFailed`].
pub type Approved = Arc<BTreeSet<String>>;

/// Mounts, directories and drivers of the node, and the API server's state of its volumes.
#[derive(Clone)]
pub struct Storage {
    /// The kubelet's directory.
    pub root: KubeletRoot,
    /// Mounts below the directory of pods, for the removal of those directories.
    pub mounts: Arc<Mounts>,
    /// All mounts of the node. They prove that no one uses a volume with a part outside of the pod's directory; for others they are not
    /// read.
    pub all_mounts: Arc<Mounts>,
    /// The gate for effects.
    pub effects: Effects,
    /// sysfs directory of block devices.
    pub sys_block: PathBuf,
    /// procfs.
    pub proc: PathBuf,
    /// The API server's state of volumes.
    pub cluster: Arc<dyn Cluster>,
    /// One lock for each volume.
    pub locks: VolumeLocks,
    /// What survives a crash.
    pub journal: Journal,
}

/// The API server's state of this node's volumes. The defaults are for a node without API server: its volumes are known only by the
/// node's files.
pub trait Cluster: Send + Sync {
    /// CSI driver and volume handle of the PersistentVolume of this name; `None` if it does not exist, or the node may not read
    /// it.
    fn persistent_volume(&self, _name: String) -> BoxFuture<'static, Result<Option<(String, String)>, String>> {
        Box::pin(async { Ok(None) })
    }

    /// The node's `volumesInUse`.
    fn in_use(&self) -> BoxFuture<'static, Result<Vec<String>, String>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Removes a volume from the node's `volumesInUse`: after that a controller may detach it.
    fn remove_in_use(&self, _volume: String) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

/// Locks by volume: work on the same volume is done one after another. Clones share them.
#[derive(Clone, Default)]
pub struct VolumeLocks(Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>);

/// A node without API server.
pub struct NoCluster;

// === impl Storage ===

impl Storage {
    /// Mounts, directories and drivers for the pods below this kubelet's root.
    pub fn new(
        host: &Host,
        root: &KubeletRoot,
        effects: &Effects,
        cluster: Arc<dyn Cluster>,
        journal: Journal,
    ) -> Self {
        Self {
            mounts: Arc::new(Mounts::new(&host.mountinfo, root.pods())),
            all_mounts: Arc::new(Mounts::new(&host.mountinfo, "/")),
            root: root.clone(),
            effects: effects.clone(),
            sys_block: host.sys_block.clone(),
            proc: host.proc.clone(),
            cluster,
            locks: VolumeLocks::default(),
            journal,
        }
    }

    /// The same storage, with these effects.
    pub(in crate::teardown) fn with_effects(&self, effects: &Effects) -> Self {
        let effects = effects.clone();
        Self {
            effects,
            ..self.clone()
        }
    }

    /// Runs blocking work on a thread. `verb` and `what` name it in the fault if no thread can run it.
    pub async fn run_blocking<T: Send + 'static>(
        self: &Arc<Self>,
        verb: &'static str,
        what: impl AsRef<Path>,
        work: impl FnOnce(&Self) -> Result<T, Vec<Fault>> + Send + 'static,
    ) -> Result<T, Vec<Fault>> {
        let storage = Arc::clone(self);
        let result = self.effects.run_blocking(move |_| work(&storage)).await;
        result.unwrap_or_else(|why| Err(vec![Fault::new(verb, what, why)]))
    }

    /// Reads `what` on a thread. `read` fails with a single fault.
    pub(in crate::teardown) async fn read_blocking<T: Send + 'static>(
        self: &Arc<Self>,
        what: impl AsRef<Path>,
        read: impl FnOnce(&Self) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Vec<Fault>> {
        self.run_blocking("read", what, |storage| Ok(read(storage)?)).await
    }

    /// Removes the volume from `volumesInUse`. `mounted_at` is its former mount point. It fails while anything is mounted in a
    /// directory with the volume's digest in its name: only the mount table shows all of these.
    pub(super) async fn remove_in_use(self: &Arc<Self>, volume: String, mounted_at: &Path) -> Result<(), Vec<Fault>> {
        if let Some((driver, digest)) = csi_files::staged_as(&volume) {
            self.read_blocking(mounted_at, move |storage| {
                let table = storage.all_mounts.read()?;
                let all = storage.root.path().join(csi_files::STAGING);
                let is_staged = |it: &&Mount| match it.path.strip_prefix(&all) {
                    Ok(below) => below.starts_with(Path::new(&driver).join(&digest)),
                    Err(_) => it.path.to_string_lossy().contains(&digest),
                };
                match table.all().find(is_staged) {
                    None => Ok(()),
                    Some(mount) => Err(Fault::new("remove from volumesInUse", &mount.path, Cause::StillMounted)),
                }
            })
            .await?;
        }
        let out = self.cluster.remove_in_use(volume).await;
        out.map_err(|why| fault_of("remove from volumesInUse", mounted_at, &why))
    }

    /// The CSI driver of this name, or why it cannot be called, and whether that is certain: no process listens on its sockets.
    pub(super) async fn csi(&self, driver: &str) -> Result<Result<Csi, (DriverUnavailable, bool)>, Vec<Fault>> {
        let drivers = Registry::read(&self.root.path().join(DIRECTORY), &self.effects).await?;
        let driver = drivers.csi(driver).await;
        Ok(driver.map_err(|why| (why, drivers.is_complete())))
    }
}

// === impl VolumeLocks ===

impl VolumeLocks {
    /// Locks the volume of this name.
    pub async fn lock(&self, what: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(locks.entry(what.to_owned()).or_default())
        };
        turn.lock_owned().await
    }
}

impl Cluster for NoCluster {}

/// A fault with this cause.
pub(super) fn fault_of(verb: &'static str, path: impl AsRef<Path>, why: &dyn std::fmt::Display) -> Vec<Fault> {
    vec![Fault::new(verb, path, Cause::Message(why.to_string()))]
}
