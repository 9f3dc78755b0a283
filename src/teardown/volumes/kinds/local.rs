//! `local` volumes: a directory of the host, the file system of a device that is mounted once for all pods, or a raw block device.
//! The data stays. The pod's mount is unmounted, and the device's with the last pod.

use std::{ffi::OsStr, path::Path, sync::Arc};

use super::{
    super::{calls::Calls, storage::Storage},
    device::{self, Maps},
};
use crate::{
    node::{
        dirs::Dir,
        fault::Fault,
        mounts::Mount,
        pod_dir::{PodDir, VolumeDir, names, other_pods},
    },
    teardown::{on_disk::Work, plan::PlannedAction},
};

pub const PLUGIN: &str = "kubernetes.io~local-volume";
/// Below the kubelet's directory: one directory for each volume on a device.
const DEVICE_MOUNTS: &str = "plugins/kubernetes.io/local-volume/mounts";
/// Below the kubelet's directory, with the escaped name of the plugin, unlike the device mounts.
pub const ALL_MAPS: &str = "plugins/kubernetes.io~local-volume/volumeDevices";

pub fn planned(storage: &Storage, pod: &PodDir, volume: &VolumeDir) -> Result<Calls, Fault> {
    let device = storage.root.path().join(DEVICE_MOUNTS).join(&volume.name);
    let is_mounted = !storage.all_mounts.read()?.mounts_on(&device).is_empty();
    let is_unmounted = is_mounted && !is_used_by_another(storage, pod, &volume.name)?;
    let unmount = is_unmounted.then(|| PlannedAction::Unmount {
        path: device.display().to_string(),
        fs_type: "local".to_owned(),
    });
    Ok(Calls {
        actions: unmount.into_iter().collect(),
        ..Calls::default()
    })
}

pub fn planned_device(storage: &Storage, pod: &PodDir, volume: &VolumeDir) -> Calls {
    let path = maps(storage, volume).0.join(pod.uid()).display().to_string();
    Calls {
        actions: vec![PlannedAction::UnmapDevice { path }],
        ..Calls::default()
    }
}

pub async fn tear_down(storage: &Arc<Storage>, pod: &PodDir, volume: &VolumeDir) -> Result<(), Vec<Fault>> {
    let path = pod.path().join(volume.relative());
    let _lock = storage.locks.lock(&format!("{PLUGIN}/{}", volume.name.display())).await;
    let (pod, volume) = (pod.clone(), volume.clone());
    let work = move |storage: &Storage| {
        let Some(dir) = pod.open()? else {
            return Ok(());
        };
        let mut work = Work::on(&dir, &storage.effects);
        work.unmount_all(&storage.mounts, &[&pod.path().join(volume.relative())]);
        if work.faults.is_empty() && !is_used_by_another(storage, &pod, &volume.name)? {
            unmount_device(storage, &volume.name, &mut work);
        }
        // The last step, so that a retry finds the volume again.
        if work.faults.is_empty() {
            work.remove_empty(Path::new(names::VOLUMES).join(&volume.plugin), &volume.name);
        }
        work.done()
    };
    storage.run_blocking("tear down", &path, work).await
}

/// Removes only the pod's map.
pub async fn tear_down_device(storage: &Arc<Storage>, pod: &PodDir, volume: &VolumeDir) -> Result<(), Vec<Fault>> {
    let what = format!("{ALL_MAPS}/{}", volume.name.display());
    let _lock = storage.locks.lock(&what).await;
    let (pod, volume) = (pod.clone(), volume.clone());
    let work = move |storage: &Storage| {
        maps(storage, &volume).unmap(storage, pod.uid(), &[device::link(&pod, &volume)])?;
        device::remove_link(storage, &pod, &volume)
    };
    storage.run_blocking("unmap", &what, work).await
}

fn maps(storage: &Storage, volume: &VolumeDir) -> Maps {
    Maps(storage.root.path().join(ALL_MAPS).join(&volume.name))
}

fn is_used_by_another(storage: &Storage, pod: &PodDir, volume: &OsStr) -> Result<bool, Fault> {
    let subdir = Path::new(names::VOLUMES).join(PLUGIN);
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
