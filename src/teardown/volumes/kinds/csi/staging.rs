//! Paths where drivers stage volumes, and the files there that the kubelet creates. All functions block.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use super::{
    super::{super::storage::Storage, device::Maps},
    identity::{Identity, unidentified},
};
use crate::{
    node::{
        csi_files::{self, BLOCK, STAGING, VolumeDataFile, staging_dir, staging_name},
        dirs::Dir,
        fault::Fault,
    },
    teardown::on_disk::Work,
    why::Why,
};

pub const VERB: &str = "unstage";
/// Below a staging directory: the mount point for the node.
pub const GLOBAL: &str = "globalmount";
/// Staging directory of kubelets before 1.24, by PersistentVolume.
const OLD: &str = "pv";

/// Below the kubelet's root: all raw block volumes.
pub const BLOCK_VOLUMES: &str = "plugins/kubernetes.io/csi/volumeDevices";
/// Below the kubelet's root: raw block volumes as their drivers publish them.
pub const PUBLISHED_DEVICES: &str = "plugins/kubernetes.io/csi/volumeDevices/publish";
/// Directories below [`BLOCK_VOLUMES`] that are not a volume's.
const PUBLISHED: &str = "publish";
const STAGED: &str = "staging";
/// Directories of each raw block volume.
pub const MAPS: &str = "dev";
const DATA: &str = "data";

/// A path where a driver may have staged a volume. One volume may have several: as a file system, and as a raw block device for
/// each of its PersistentVolumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StagingPath {
    /// The directory `<driver>/<digest of the handle>`.
    FileSystem {
        path: PathBuf,
        driver: String,
        digest: String,
    },
    /// A raw block volume, by the name of its PersistentVolume.
    Block { all: PathBuf, volume: OsString },
}

// === impl StagingPath ===

impl StagingPath {
    /// Where this volume is staged as a file system; `None` if the driver's name is invalid.
    pub fn file_system(storage: &Storage, identity: &Identity) -> Option<Self> {
        let dir = staging_dir(&identity.driver, &identity.handle)?;
        Some(Self::FileSystem {
            path: storage.root.path().join(dir),
            driver: identity.driver.clone(),
            digest: staging_name(&identity.handle),
        })
    }

    /// Where the raw block volume with this PersistentVolume is staged.
    pub fn block(storage: &Storage, volume: &OsStr) -> Self {
        Self::Block {
            all: storage.root.path().join(BLOCK_VOLUMES),
            volume: volume.to_owned(),
        }
    }

    /// All paths where volumes may be staged; `None` if no kubelet has mounted a CSI volume on this node.
    pub fn all(storage: &Storage) -> Result<Option<Vec<Self>>, Fault> {
        let Some(drivers) = Dir::open(&storage.root.path().join(STAGING))? else {
            return Ok(None);
        };
        let mut found = Vec::new();
        for driver in drivers.names()?.iter().filter(|name| *name != BLOCK && *name != OLD) {
            let (Some(name), Some(dir)) = (driver.to_str(), drivers.open_below(driver)?) else {
                continue;
            };
            let digests = dir.names()?.into_iter().filter_map(|digest| digest.into_string().ok());
            found.extend(digests.map(|digest| Self::FileSystem {
                path: dir.path().join(&digest),
                driver: name.to_owned(),
                digest,
            }));
        }
        found.extend(Self::all_block(storage)?);
        Ok(Some(found))
    }

    /// Those of all raw block volumes, including partial ones of an interrupted kubelet.
    pub fn all_block(storage: &Storage) -> Result<Vec<Self>, Fault> {
        let Some(all) = Dir::open(&storage.root.path().join(BLOCK_VOLUMES))? else {
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
        Ok(volumes.iter().map(|volume| Self::block(storage, volume)).collect())
    }

    /// The staging target path for the driver.
    pub fn global(&self) -> PathBuf {
        match self {
            Self::FileSystem { path, .. } => path.join(GLOBAL),
            Self::Block { all, volume } => all.join(STAGED).join(volume),
        }
    }

    /// Directory of the kubelet's file.
    pub fn data(&self) -> PathBuf {
        match self {
            Self::FileSystem { path, .. } => path.clone(),
            Self::Block { all, volume } => all.join(volume).join(DATA),
        }
    }

    /// The volume in the kubelet's file, or why that does not identify it.
    pub fn read_identity(&self) -> Result<Result<Identity, Why>, Fault> {
        let data = self.data();
        let identity = Identity::read(csi_files::read_at(&data)?, &data);
        Ok(match (self, identity) {
            (Self::FileSystem { digest, .. }, Ok(identity)) if staging_name(&identity.handle) != *digest => {
                let why = "it names another volume than its directory";
                Err(unidentified(&data, why))
            }
            (_, identity) => identity,
        })
    }

    /// Whether it may be staged: the kubelet creates the directory, then its file, and then calls a driver that stages.
    pub fn may_be_staged(&self) -> Result<bool, Fault> {
        Ok(Dir::open(&self.global())?.is_some() && csi_files::read_at(&self.data())? != VolumeDataFile::Missing)
    }

    /// Removes everything that a kubelet created for it, and leftovers of pods, but no other content.
    pub fn remove(&self, storage: &Storage) -> Result<(), Vec<Fault>> {
        let all = match self {
            Self::FileSystem { .. } => STAGING,
            Self::Block { .. } => BLOCK_VOLUMES,
        };
        let Some(dir) = Dir::open(&storage.root.path().join(all))? else {
            return Ok(());
        };
        let work = Work::on(&dir, &storage.effects);
        match self {
            Self::FileSystem { driver, digest, .. } => remove_file_system(work, driver, digest),
            Self::Block { volume, .. } => {
                let maps = [mapped(storage, volume), published(storage, volume)];
                remove_block(work, maps, volume)
            }
        }
    }
}

/// The maps of a raw block volume.
pub fn mapped(storage: &Storage, volume: &OsStr) -> Maps {
    Maps(storage.root.path().join(BLOCK_VOLUMES).join(volume).join(MAPS))
}

/// Where the driver publishes a raw block volume.
pub fn published(storage: &Storage, volume: &OsStr) -> Maps {
    Maps(storage.root.path().join(PUBLISHED_DEVICES).join(volume))
}

fn remove_file_system(mut work: Work<'_>, driver: &str, digest: &str) -> Result<(), Vec<Fault>> {
    let subdir = Path::new(driver).join(digest);
    work.remove_empty(&subdir, GLOBAL.as_ref());
    if work.faults.is_empty() {
        work.remove_file(&subdir, csi_files::FILE.as_ref());
        work.remove_empty(driver, digest.as_ref());
    }
    work.done()
}

fn remove_block(mut work: Work<'_>, maps: [Maps; 2], volume: &OsStr) -> Result<(), Vec<Fault>> {
    let own = Path::new(volume);
    for maps in maps {
        let left = maps.remove_leftovers(work.effects, None);
        work.faults.extend(left.err().into_iter().flatten());
    }
    work.remove_empty(PUBLISHED, volume);
    // A driver may leave its mount point here. Nothing is mounted.
    work.remove_trees(STAGED, [volume]);
    work.remove_empty(own, MAPS.as_ref());
    if work.faults.is_empty() {
        work.remove_file(own.join(DATA), csi_files::FILE.as_ref());
        work.remove_empty(own, DATA.as_ref());
        work.record(work.dir.remove_empty(volume, work.effects));
    }
    work.done()
}
