//! Raw block volumes have a directory with one file for each pod. The device is bound to the file, and a loop device has it open.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use nix::errno::Errno;
use rustix::fs::FileType;

use super::super::{storage::Storage, volume::Volume};
use crate::{
    node::{
        dirs::Dir,
        effects::{Effects, Outcome},
        fault::{Cause, Fault},
        loops,
        mounts::Mount,
        pod_dir::{PodDir, names},
    },
    teardown::on_disk::Work,
};

/// The directory of one volume's maps, outside of pods' directories.
pub struct Maps(pub PathBuf);

// === impl Maps ===

impl Maps {
    /// Removes the pod's map: loop device, bind mount, file. The data on the device stays. `device` are other paths of the
    /// device: they identify a loop device whose map was detached.
    pub fn unmap(&self, storage: &Storage, uid: &str, device: &[PathBuf]) -> Result<(), Vec<Fault>> {
        let file = self.0.join(uid);
        let Some(dir) = Dir::open(&self.0)? else {
            // A mount over the directory hides a mount, but does not remove it.
            let mounted = storage.all_mounts.read()?.mounts_at_or_below(&[&file]);
            let still = |mount: &Mount| Fault::new("unmount", &mount.path, Cause::StillMounted);
            return match mounted.is_empty() {
                true => Ok(()),
                false => Err(mounted.iter().map(still).collect()),
            };
        };
        let mut work = Work::on(&dir, &storage.effects);
        let paths = device.iter().chain([&file]);
        let ids: Vec<_> = paths.filter_map(|path| loops::file_id(path)).collect();
        for device in loops::devices_on(&file, &ids, &storage.sys_block)? {
            work.record(loops::detach(&device, &storage.sys_block, &storage.effects));
        }
        if work.faults.is_empty() {
            work.unmount_all(&storage.all_mounts, &[&file]);
        }
        if work.faults.is_empty() {
            work.record(dir.remove_file(uid.as_ref(), &storage.effects));
        }
        work.done()
    }

    /// UIDs of the pods that have a map here and may run. A map without holder is a leftover if the pod has no directory: a
    /// kubelet creates that directory first and removes it last.
    pub fn users(&self, storage: &Storage) -> Result<Vec<String>, Fault> {
        self.pods(|uid| Ok(may_run(storage, uid) || self.is_held(storage, uid)?))
    }

    /// UIDs of the pods with a mount or a loop device here.
    pub fn holders(&self, storage: &Storage) -> Result<Vec<String>, Fault> {
        self.pods(|uid| self.is_held(storage, uid))
    }

    fn pods(&self, which: impl Fn(&OsStr) -> Result<bool, Fault>) -> Result<Vec<String>, Fault> {
        let names = Dir::open(&self.0)?.map_or(Ok(Vec::new()), |dir| dir.names())?;
        let mut pods = Vec::new();
        for name in names {
            if which(&name)? {
                pods.push(name.to_string_lossy().into_owned());
            }
        }
        Ok(pods)
    }

    fn is_held(&self, storage: &Storage, uid: &OsStr) -> Result<bool, Fault> {
        let file = self.0.join(uid);
        let mounted = !storage.all_mounts.read()?.mounts_at_or_below(&[&file]).is_empty();
        Ok(mounted || !loops::devices_on(&file, &[], &storage.sys_block)?.is_empty())
    }

    /// Removes the leftovers of this pod, or of all pods. They have no mounts. A file with content is a fault.
    pub fn remove_leftovers(&self, effects: &Effects, uid: Option<&str>) -> Result<(), Vec<Fault>> {
        let Some(dir) = Dir::open(&self.0)? else { return Ok(()) };
        let names = uid.map_or_else(|| dir.names(), |uid| Ok(vec![uid.into()]))?;
        let mut work = Work::on(&dir, effects);
        for name in names {
            work.record(remove_one(&dir, &name, effects));
        }
        work.done()
    }
}

/// A pod whose directory cannot be checked may run.
fn may_run(storage: &Storage, uid: &OsStr) -> bool {
    let Some(Ok(pod)) = uid.to_str().map(|uid| PodDir::new(&storage.root, uid)) else {
        return false;
    };
    match pod.open_parent() {
        Ok(Some(pods)) => !matches!(pods.open_below(uid), Ok(None)),
        Ok(None) | Err(_) => true,
    }
}

/// The mount point of a device is an empty file.
fn remove_one(dir: &Dir, name: &OsStr, effects: &Effects) -> Result<Outcome, Fault> {
    match dir.stat(name)?.map(|seen| seen.kind) {
        None => Ok(Outcome::Nothing),
        Some(FileType::Directory) => dir.remove_empty(name, effects),
        Some(FileType::RegularFile) if dir.read_file(name, 0).is_err() => {
            let why = "a driver has left it where it published a device, and it is not empty: left alone";
            let (path, cause) = (dir.path().join(name), Cause::Message(why.to_owned()));
            Err(Fault::new("remove", path, cause))
        }
        Some(_) => dir.remove_file(name, effects),
    }
}

/// The directories `<all>/<volume>/<maps>`, by volume, opened one after the other. Blocks.
pub fn map_dirs(all: &Path, maps: &str) -> Result<impl Iterator<Item = Result<(OsString, Dir), Fault>>, Fault> {
    let all = Dir::open(all)?;
    let volumes = all.as_ref().map(Dir::names).transpose()?.unwrap_or_default();
    let open = move |volume: OsString| match all.as_ref()?.open_below(Path::new(&volume).join(maps)) {
        Ok(dir) => dir.map(|dir| Ok((volume, dir))),
        // Not a volume's: the kubelet creates only directories here.
        Err(Fault {
            cause: Cause::Errno(Errno::ENOTDIR | Errno::ELOOP),
            ..
        }) => None,
        Err(fault) => Some(Err(fault)),
    };
    Ok(volumes.into_iter().filter_map(open))
}

/// Removes the pod's link to the device, the last part of the volume in its directory.
pub fn remove_link(storage: &Storage, Volume { pod, dir: volume, .. }: &Volume) -> Result<(), Vec<Fault>> {
    let Some(dir) = pod.open()? else {
        return Ok(());
    };
    let mut work = Work::on(&dir, &storage.effects);
    let subdir = Path::new(names::DEVICES).join(&volume.plugin);
    if let Some(subdir) = dir.open_below(&subdir)? {
        // A kubelet creates only a link here.
        if subdir.link_target(&volume.name)?.is_some() {
            work.record(subdir.remove_file(&volume.name, &storage.effects));
        } else if subdir.names()?.contains(&volume.name) {
            work.record(subdir.remove_empty(&volume.name, &storage.effects));
        }
    }
    work.done()
}
