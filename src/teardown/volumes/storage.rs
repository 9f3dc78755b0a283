//! Mounts, directories and drivers for the teardown of volumes.

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::{
    journal::Journal,
    node::{
        csi_files,
        effects::Effects,
        fault::{Cause, Fault},
        host::Host,
        kubelet_root::KubeletRoot,
        mounts::{Mount, MountTable, Mounts},
        plugins::{Csi, DriverUnavailable, Registry, registry::DIRECTORY},
    },
    teardown::boundary::PodApi,
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
    /// The API server: PersistentVolumes, and the Node's `volumesInUse`.
    pub api: Arc<dyn PodApi>,
    /// One lock for each volume.
    pub locks: VolumeLocks,
    /// What survives a crash.
    pub journal: Journal,
}

/// Locks by volume: work on the same volume is done one after another. Clones share them.
#[derive(Clone, Default)]
pub struct VolumeLocks(Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>);

// === impl Storage ===

impl Storage {
    /// Mounts, directories and drivers for the pods below this kubelet's root.
    pub fn new(host: &Host, root: &KubeletRoot, effects: &Effects, api: Arc<dyn PodApi>, journal: Journal) -> Self {
        Self {
            mounts: Arc::new(Mounts::new(&host.mountinfo, root.pods())),
            all_mounts: Arc::new(Mounts::new(&host.mountinfo, "/")),
            root: root.clone(),
            effects: effects.clone(),
            sys_block: host.sys_block.clone(),
            proc: host.proc.clone(),
            api,
            locks: VolumeLocks::default(),
            journal,
        }
    }

    /// The same storage, with these effects.
    pub(in crate::teardown) fn with_effects(&self, effects: &Effects) -> Self {
        Self {
            effects: effects.clone(),
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

    /// The current mount table.
    pub(super) async fn table(self: &Arc<Self>) -> Result<Arc<MountTable>, Vec<Fault>> {
        self.read_blocking("the mount table", |storage| storage.all_mounts.read())
            .await
    }

    /// Removes the volume from `volumesInUse`. `mounted_at` is its former mount point. It fails while anything is mounted in a
    /// directory with the volume's digest in its name: only the mount table shows all of these.
    pub(super) async fn remove_in_use(self: &Arc<Self>, volume: &str, mounted_at: &Path) -> Result<(), Vec<Fault>> {
        if let Some((driver, digest)) = csi_files::staged_as(volume) {
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
        let out = self.api.remove_volume_in_use(volume).await;
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
            let mut locks = self.0.lock();
            locks.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(locks.entry(what.to_owned()).or_default())
        };
        turn.lock_owned().await
    }
}

/// A fault with this cause.
pub(super) fn fault_of(verb: &'static str, path: impl AsRef<Path>, why: &dyn std::fmt::Display) -> Vec<Fault> {
    vec![Fault::new(verb, path, Cause::Message(why.to_string()))]
}
