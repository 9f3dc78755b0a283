//! The paths of raw block volumes, outside of pods' directories.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    super::{super::storage::Storage, device::Maps},
    identity::{self, Identity, UnidentifiedFile},
};
use crate::{
    node::{
        csi_files::{self, BLOCK, STAGING},
        dirs::Dir,
        fault::Fault,
    },
    teardown::on_disk::{DiskReport, Work},
};

/// Directories of published and of staged volumes.
pub const PUBLISHED: &str = "publish";
const STAGED: &str = "staging";
/// Directories of each volume.
pub const MAPS: &str = "dev";
const DATA: &str = "data";

/// The paths of one raw block volume, outside of pods' directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockVolumePaths {
    all: PathBuf,
    /// Name of its PersistentVolume.
    pub volume: OsString,
}

/// Directory of all raw block volumes.
pub fn all_in(storage: &Storage) -> PathBuf {
    storage.root.path().join(STAGING).join(BLOCK)
}

// === impl BlockVolumePaths ===

impl BlockVolumePaths {
    /// The paths of the PersistentVolume with this name.
    pub fn for_volume(storage: &Storage, volume: &OsStr) -> Self {
        Self {
            all: all_in(storage),
            volume: volume.to_owned(),
        }
    }

    pub fn maps(&self) -> Maps {
        Maps(self.all.join(&self.volume).join(MAPS))
    }

    pub fn published(&self) -> PathBuf {
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
        let identified = storage.read_blocking(self.data(), move |_| paths.read_identity());
        match identified.await? {
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

/// The paths of all raw block volumes of this node, including partial ones of an interrupted kubelet. Blocks.
pub fn all(storage: &Storage) -> Result<Vec<BlockVolumePaths>, Fault> {
    let Some(all) = Dir::open(&all_in(storage))? else {
        return Ok(Vec::new());
    };
    let mut volumes: BTreeSet<OsString> = all.names()?.into_iter().collect();
    for subdir in [PUBLISHED, STAGED] {
        if volumes.remove(OsStr::new(subdir))
            && let Some(subdir) = all.open_below(subdir)?
        {
            volumes.extend(subdir.names()?);
        }
    }
    Ok(volumes
        .iter()
        .map(|volume| BlockVolumePaths::for_volume(storage, volume))
        .collect())
}
