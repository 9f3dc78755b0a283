//! `local` volumes: a directory of the host, or the file system of a device that is mounted once for all pods. The data stays.
//! The pod's mount is unmounted, and the device's with the last pod.

use std::{ffi::OsStr, path::Path, sync::Arc};

use futures::future::FutureExt as _;

use super::super::{
    kind::{Approved, OneByOne, TeardownResult, VolumeKind},
    planned_teardown::PlannedTeardown,
    storage::Storage,
};
use crate::{
    node::{
        dirs::Dir,
        fault::Fault,
        mounts::Mount,
        pod_dir::{PodDir, VolumeDir, names, other_pods},
    },
    teardown::on_disk::{DiskReport, Work},
};

pub mod block;

pub struct Local;

const PLUGIN: &str = "kubernetes.io~local-volume";
/// Below the kubelet's directory: one directory for each volume on a device.
const DEVICE_MOUNTS: &str = "plugins/kubernetes.io/local-volume/mounts";

// === impl Local ===

impl VolumeKind for Local {
    fn plugin(&self) -> &'static str {
        PLUGIN
    }

    fn one_by_one(&self) -> Option<&'static dyn OneByOne> {
        Some(&Self)
    }
}

impl OneByOne for Local {
    fn planned(&self, storage: &Storage, pod: &PodDir, volume: &VolumeDir) -> Result<PlannedTeardown, Fault> {
        let device = storage.root.path().join(DEVICE_MOUNTS).join(&volume.name);
        let is_mounted = !storage.all_mounts.read()?.mounts_on(&device).is_empty();
        let is_unmounted = is_mounted && !is_used_by_another(storage, pod, &volume.name)?;
        Ok(PlannedTeardown::Local {
            device: is_unmounted.then(|| device.display().to_string()),
        })
    }

    fn tear_down(&self, storage: Arc<Storage>, pod: PodDir, volume: VolumeDir, _approved: Approved) -> TeardownResult {
        async move {
            let path = pod.path().join(volume.relative());
            let _lock = storage.locks.lock(&format!("{PLUGIN}/{}", volume.name.display())).await;
            storage
                .run_blocking("tear down", &path, move |storage| tear_down(storage, &pod, &volume))
                .await
        }
        .boxed()
    }
}

fn tear_down(storage: &Storage, pod: &PodDir, volume: &VolumeDir) -> Result<DiskReport, Vec<Fault>> {
    let one = |fault| vec![fault];
    let Some(dir) = pod.open().map_err(one)? else {
        return Ok(DiskReport::default());
    };
    let mut work = Work::on(&dir, &storage.effects);
    work.unmount_all(&storage.mounts, &[&pod.path().join(volume.relative())]);
    if work.faults.is_empty() && !is_used_by_another(storage, pod, &volume.name).map_err(one)? {
        unmount_device(storage, &volume.name, &mut work);
    }
    // The last step, so that a retry finds the volume again.
    if work.faults.is_empty() {
        work.remove_empty(Path::new(names::VOLUMES).join(&volume.plugin), &volume.name);
    }
    work.done()
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
