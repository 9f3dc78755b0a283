//! `local` volumes: a directory of the host, the file system of a device that is mounted once for all pods, or a raw block device.
//! The data stays. The pod's mount is unmounted, and the device's with the last pod.

use std::{ffi::OsStr, path::Path, sync::Arc};

use super::{
    super::{
        storage::Storage,
        volume::{Calls, Shape, Volume},
    },
    device::{self, Maps},
};
use crate::{
    node::{
        dirs::Dir,
        fault::Fault,
        mounts::Mount,
        pod_dir::{names, other_pods},
    },
    teardown::{on_disk::Work, plan::PlannedAction},
};

pub const PLUGIN: &str = "kubernetes.io~local-volume";
/// Below the kubelet's directory: one directory for each volume on a device.
const DEVICE_MOUNTS: &str = "plugins/kubernetes.io/local-volume/mounts";
/// Below the kubelet's directory, with the escaped name of the plugin, unlike the device mounts.
pub const ALL_MAPS: &str = "plugins/kubernetes.io~local-volume/volumeDevices";

pub fn planned(storage: &Storage, volume: &Volume) -> Result<Calls, Fault> {
    let action = match volume.shape {
        Shape::FileSystem => {
            let device = storage.root.path().join(DEVICE_MOUNTS).join(&volume.dir.name);
            let is_mounted = !storage.all_mounts.read()?.mounts_on(&device).is_empty();
            let is_unmounted = is_mounted && !is_used_by_another(storage, volume)?;
            is_unmounted.then(|| PlannedAction::Unmount {
                path: device.display().to_string(),
                fs_type: "local".to_owned(),
            })
        }
        Shape::Block => {
            let path = maps(storage, volume).0.join(volume.pod.uid()).display().to_string();
            Some(PlannedAction::UnmapDevice { path })
        }
    };
    Ok(Calls {
        actions: action.into_iter().collect(),
        ..Calls::default()
    })
}

/// Tears down the pod's mount, or its map of a raw block device.
pub async fn tear_down(storage: &Arc<Storage>, volume: &Volume) -> Result<(), Vec<Fault>> {
    let name = format!("{PLUGIN}/{}", volume.dir.name.display());
    let _lock = storage.locks.lock(&name).await;
    let (path, volume) = (volume.path.clone(), volume.clone());
    let (verb, work): (_, fn(&Storage, &Volume) -> _) = match volume.shape {
        Shape::FileSystem => ("tear down", unmount),
        Shape::Block => ("unmap", unmap),
    };
    let work = move |storage: &Storage| work(storage, &volume);
    storage.run_blocking(verb, path, work).await
}

fn unmount(storage: &Storage, volume: &Volume) -> Result<(), Vec<Fault>> {
    let Some(dir) = volume.pod.open()? else {
        return Ok(());
    };
    let mut work = Work::on(&dir, &storage.effects);
    work.unmount_all(&storage.mounts, &[&volume.path]);
    if work.faults.is_empty() && !is_used_by_another(storage, volume)? {
        unmount_device(storage, &volume.dir.name, &mut work);
    }
    // The last step, so that a retry finds the volume again.
    if work.faults.is_empty() {
        work.remove_empty(Path::new(names::VOLUMES).join(&volume.dir.plugin), &volume.dir.name);
    }
    work.done()
}

fn unmap(storage: &Storage, volume: &Volume) -> Result<(), Vec<Fault>> {
    maps(storage, volume).unmap(storage, volume.pod.uid(), std::slice::from_ref(&volume.path))?;
    device::remove_link(storage, volume)
}

fn maps(storage: &Storage, volume: &Volume) -> Maps {
    Maps(storage.root.path().join(ALL_MAPS).join(&volume.dir.name))
}

fn is_used_by_another(storage: &Storage, Volume { pod, dir, .. }: &Volume) -> Result<bool, Fault> {
    let (subdir, volume) = (Path::new(names::VOLUMES).join(PLUGIN), &*dir.name);
    for other in other_pods(&storage.root, pod.uid())? {
        if let Some(volumes) = other?.open_below(&subdir)?
            && volumes.names()?.iter().any(|name| name == volume)
        {
            return Ok(true);
        }
    }
    // Another pod's directory may be covered by a mount.
    let table = storage.all_mounts.read()?;
    let is_used = |it: &Mount| it.path.ends_with(subdir.join(volume)) && !it.path.starts_with(pod.path());
    Ok(table.mounts_below(storage.root.pods()).iter().any(is_used))
}

fn unmount_device(storage: &Storage, volume: &OsStr, work: &mut Work<'_>) {
    let mounts = storage.root.path().join(DEVICE_MOUNTS);
    work.unmount_all(&storage.all_mounts, &[&mounts.join(volume)]);
    if !work.faults.is_empty() {
        return;
    }
    match Dir::open(&mounts) {
        Ok(Some(mounts)) => work.remove_if_empty(&mounts, volume),
        Ok(None) => {}
        Err(fault) => work.faults.push(fault),
    }
}
