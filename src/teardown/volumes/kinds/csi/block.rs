//! A CSI volume as a raw block device.
//!
//! `loop device → bind mount of the device → NodeUnpublishVolume → NodeUnstageVolume → volumesInUse → link in the pod`

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::future::FutureExt as _;

use super::{
    super::{
        super::{
            kind::{Approved, DeviceKind, OneByOne, TeardownResult},
            storage::Storage,
        },
        device::{self, Maps},
    },
    PLUGIN,
    identity::{self, Identity, UnidentifiedFile},
    publication,
    release::{self, StagingPath},
    users::{Shape, Use},
};
use crate::{
    node::{
        csi_files::{self, BLOCK, STAGING},
        dirs::Dir,
        fault::Fault,
        pod_dir::{PodDir, VolumeDir},
    },
    teardown::on_disk::{DiskReport, Work},
};

pub struct Block;

/// Directories of published and of staged volumes.
const PUBLISHED: &str = "publish";
const STAGED: &str = "staging";
/// Directories of each volume.
const MAPS: &str = "dev";
const DATA: &str = "data";

/// The paths of one raw block volume, outside of pods' directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockVolumePaths {
    all: PathBuf,
    /// Name of its PersistentVolume.
    pub volume: OsString,
}

/// Directory of all raw block volumes.
fn all_in(storage: &Storage) -> PathBuf {
    storage.root.path().join(STAGING).join(BLOCK)
}

// === impl BlockVolumePaths ===

impl BlockVolumePaths {
    /// The paths of the PersistentVolume with this name.
    pub fn of(storage: &Storage, volume: &OsStr) -> Self {
        Self {
            all: all_in(storage),
            volume: volume.to_owned(),
        }
    }

    fn maps(&self) -> Maps {
        Maps(self.all.join(&self.volume).join(MAPS))
    }

    fn published(&self) -> PathBuf {
        self.all.join(PUBLISHED).join(&self.volume)
    }

    /// Its staging path.
    pub fn staged(&self) -> PathBuf {
        self.all.join(STAGED).join(&self.volume)
    }

    /// Directory of the kubelet's file.
    pub fn data(&self) -> PathBuf {
        self.all.join(&self.volume).join(DATA)
    }

    /// The volume in the kubelet's file. Blocks.
    pub fn read_identity(&self) -> Result<Result<Identity, UnidentifiedFile>, Fault> {
        let data = self.data();
        Ok(Identity::read(&csi_files::read_at(&data)?, &data))
    }

    /// The volume in the kubelet's file, else of the PersistentVolume with the volume's name.
    pub async fn identity(&self, storage: &Arc<Storage>) -> Result<Option<Identity>, Vec<Fault>> {
        let paths = self.clone();
        let said = storage.look(self.data(), move |_| paths.read_identity());
        match said.await? {
            Ok(identity) => Ok(Some(identity)),
            Err(_) => identity::by_persistent_volume(storage, &self.volume, &self.data()).await,
        }
    }

    /// UIDs of the pods for which it is mapped or published, and that may run. Blocks.
    pub fn users(&self, storage: &Storage) -> Result<Vec<String>, Fault> {
        let mut users = self.maps().users(storage)?;
        users.extend(Maps(self.published()).users(storage)?);
        Ok(users)
    }

    /// Removes everything that a kubelet created for the volume, and leftovers of pods: empty files and directories, and the
    /// kubelet's file. Blocks.
    pub fn remove(&self, storage: &Storage) -> Result<DiskReport, Vec<Fault>> {
        let Some(dir) = Dir::open(&self.all).map_err(|fault| vec![fault])? else {
            return Ok(DiskReport::default());
        };
        let own = Path::new(&self.volume);
        let mut work = Work::on(&dir, &storage.effects);
        for maps in [Maps(self.published()), self.maps()] {
            let left = maps.remove_leftovers(&mut work);
            work.faults.extend(left.err());
        }
        work.remove_empty(PUBLISHED, &self.volume);
        // A driver may leave its mount point here. Nothing is mounted.
        work.remove_tree(STAGED, &self.volume);
        work.remove_empty(own, MAPS.as_ref());
        if work.faults.is_empty() {
            work.remove_file(own.join(DATA), csi_files::FILE.as_ref());
            work.remove_empty(own, DATA.as_ref());
            work.record(dir.remove_empty(&self.volume, &storage.effects));
        }
        work.done()
    }
}

// === impl Block ===

impl DeviceKind for Block {
    fn plugin(&self) -> &'static str {
        PLUGIN
    }

    fn mapped_for(&self, storage: &Storage, uid: &str) -> Result<Vec<OsString>, Fault> {
        let all = all_in(storage);
        let mut found = device::mapped_for(&all, MAPS, uid)?;
        found.extend(device::mapped_for(&all.join(PUBLISHED), "", uid)?);
        found.sort();
        found.dedup();
        Ok(found)
    }

    fn mapped_pods(&self, storage: &Storage) -> Result<Vec<String>, Fault> {
        let all = all_in(storage);
        let mut pods = device::mapped_pods(storage, &all, MAPS)?;
        pods.extend(device::mapped_pods(storage, &all.join(PUBLISHED), "")?);
        Ok(pods)
    }
}

impl OneByOne for Block {
    fn tear_down(&self, storage: Arc<Storage>, pod: PodDir, volume: VolumeDir, approved: Approved) -> TeardownResult {
        tear_down(storage, pod, volume, approved).boxed()
    }
}

async fn tear_down(
    storage: Arc<Storage>,
    pod: PodDir,
    volume: VolumeDir,
    approved: Approved,
) -> Result<DiskReport, Vec<Fault>> {
    let paths = BlockVolumePaths::of(&storage, &volume.name);
    let what = paths.data();
    let identity = paths.identity(&storage).await?;
    let name = identity
        .as_ref()
        .map_or_else(|| what.display().to_string(), Identity::unique_name);
    let _turn = storage.locks.lock(&name).await;

    let (maps, uid) = (paths.maps(), pod.uid().to_owned());
    let mut report = storage.work(&what, move |storage| maps.unmap(storage, &uid)).await?;
    let published = Maps(paths.published());
    report += publication::unpublish(&storage, identity.as_ref(), &published.0.join(pod.uid()), &approved).await?;
    if report.withheld == 0 {
        let uid = pod.uid().to_owned();
        // The driver should have removed it. It does not block the pod, and is removed with the volume's directories.
        match storage
            .work(&what, move |storage| published.remove_leftovers_of(storage, &uid))
            .await
        {
            Ok(done) => report += done,
            Err(faults) if faults.iter().any(Fault::is_blocked) => return Err(faults),
            Err(faults) => {
                tracing::warn!(
                    pod.uid = pod.uid(),
                    fault = faults.first().map(ToString::to_string),
                    "Driver has unpublished a raw block volume and left its mount point"
                );
            }
        }
    }
    if let Some(identity) = &identity {
        let own = Use::new(&pod, Shape::Block, &volume);
        report += release::release(
            &storage,
            identity,
            Some(own),
            vec![StagingPath::Block(paths)],
            &approved,
        )
        .await?;
    }
    report += storage
        .work(&what, move |storage| device::remove_link(storage, &pod, &volume))
        .await?;
    Ok(report)
}

/// The paths of all raw block volumes of this node, including partial ones of an interrupted kubelet. Blocks.
pub fn all(storage: &Storage) -> Result<Vec<BlockVolumePaths>, Fault> {
    let Some(all) = Dir::open(&all_in(storage))? else {
        return Ok(Vec::new());
    };
    let mut volumes: BTreeSet<OsString> = all.names()?.into_iter().collect();
    for place in [PUBLISHED, STAGED] {
        if volumes.remove(OsStr::new(place))
            && let Some(place) = all.open_below(place)?
        {
            volumes.extend(place.names()?);
        }
    }
    Ok(volumes
        .iter()
        .map(|volume| BlockVolumePaths::of(storage, volume))
        .collect())
}
