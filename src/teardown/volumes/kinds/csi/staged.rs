//! A volume with a file system, staged for the node.

use std::path::{Path, PathBuf};

use super::{
    super::super::storage::Storage,
    identity::{Identity, UnidentifiedFile},
};
use crate::{
    node::{
        csi_files::{self, STAGING, staging_dir, staging_name},
        dirs::Dir,
        fault::Fault,
        mounts::{Mount, MountTable},
    },
    teardown::on_disk::{DiskReport, Work},
};

/// Below a staging directory: the mount point for the node.
pub const GLOBAL: &str = "globalmount";

/// Staging directory of kubelets before 1.24, by PersistentVolume.
const OLD: &str = "pv";

/// A staging directory `<driver>/<digest of the handle>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    pub driver: String,
    /// The digest.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
}

// === impl Staged ===

impl Staged {
    /// The staging directory of this volume, if there is one.
    pub fn for_volume(storage: &Storage, identity: &Identity) -> Option<Self> {
        let dir = staging_dir(&identity.driver, &identity.handle)?;
        Some(Self {
            path: storage.root.path().join(dir),
            driver: identity.driver.clone(),
            name: staging_name(&identity.handle),
        })
    }

    /// Its mount point.
    pub fn global(&self) -> PathBuf {
        self.path.join(GLOBAL)
    }

    /// Its mount, if it is mounted.
    pub fn mount(&self, table: &MountTable) -> Option<Mount> {
        table.mounts_on(&self.global()).into_iter().next()
    }

    /// The volume in the kubelet's file. Blocks.
    pub fn read_identity(&self) -> Result<Result<Identity, UnidentifiedFile>, Fault> {
        let identified = Identity::read(&csi_files::read_at(&self.path)?, &self.path);
        Ok(match identified {
            Ok(identified) if staging_name(&identified.handle) != self.name => Err(UnidentifiedFile::new(
                &self.path,
                "it names another volume than its directory",
            )),
            identified => identified,
        })
    }

    pub fn is_of(&self, identity: &Identity) -> bool {
        identity.driver == self.driver && staging_name(&identity.handle) == self.name
    }

    /// Removes its directories and the kubelet's file, but no other content.
    pub fn remove(&self, storage: &Storage) -> Result<DiskReport, Vec<Fault>> {
        let Some(dir) = Dir::open(&all_staged(storage)).map_err(|fault| vec![fault])? else {
            return Ok(DiskReport::default());
        };
        let mut work = Work::on(&dir, &storage.effects);
        let subdir = Path::new(&self.driver).join(&self.name);
        work.remove_empty(&subdir, GLOBAL.as_ref());
        if work.faults.is_empty() {
            work.remove_file(&subdir, csi_files::FILE.as_ref());
            work.remove_empty(&self.driver, self.name.as_ref());
        }
        work.done()
    }
}

fn all_staged(storage: &Storage) -> PathBuf {
    storage.root.path().join(STAGING)
}

/// All staging directories of volumes with file systems.
pub fn all(storage: &Storage) -> Result<Vec<Staged>, Fault> {
    let Some(drivers) = Dir::open(&all_staged(storage))? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for driver in drivers
        .names()?
        .iter()
        .filter(|name| *name != csi_files::BLOCK && *name != OLD)
    {
        let (Some(name), Some(dir)) = (driver.to_str(), drivers.open_below(driver)?) else {
            continue;
        };
        let staged = dir.names()?.into_iter().filter_map(|staged| staged.into_string().ok());
        found.extend(staged.map(|staged| Staged {
            path: dir.path().join(&staged),
            driver: name.to_owned(),
            name: staged,
        }));
    }
    Ok(found)
}
