//! A `local` volume as a raw block device. Only the pod's map is removed.

use std::{ffi::OsString, sync::Arc};

use futures::future::FutureExt as _;

use super::{
    super::{
        super::{
            kind::{Approved, DeviceKind, OneByOne, TeardownResult},
            planned_teardown::PlannedTeardown,
            storage::Storage,
        },
        device::{self, Maps},
    },
    PLUGIN,
};
use crate::node::{
    fault::Fault,
    pod_dir::{PodDir, VolumeDir},
};

pub struct Block;

/// Below the kubelet's directory, with the escaped name of the plugin, unlike the device mounts.
const ALL_MAPS: &str = "plugins/kubernetes.io~local-volume/volumeDevices";

// === impl Block ===

impl DeviceKind for Block {
    fn plugin(&self) -> &'static str {
        PLUGIN
    }

    fn mapped_for(&self, storage: &Storage, uid: &str) -> Result<Vec<OsString>, Fault> {
        device::mapped_for(&storage.root.path().join(ALL_MAPS), "", uid)
    }

    fn mapped_pods(&self, storage: &Storage) -> Result<Vec<String>, Fault> {
        device::mapped_pods(storage, &storage.root.path().join(ALL_MAPS), "")
    }
}

impl OneByOne for Block {
    fn planned(&self, storage: &Storage, pod: &PodDir, volume: &VolumeDir) -> Result<PlannedTeardown, Fault> {
        let maps = storage.root.path().join(ALL_MAPS).join(&volume.name);
        Ok(PlannedTeardown::Unmap {
            path: maps.join(pod.uid()).display().to_string(),
        })
    }

    fn tear_down(&self, storage: Arc<Storage>, pod: PodDir, volume: VolumeDir, _approved: Approved) -> TeardownResult {
        async move {
            let what = format!("{ALL_MAPS}/{}", volume.name.display());
            let _lock = storage.locks.lock(&what).await;
            storage
                .run_blocking("unmap", &what, move |storage| {
                    let maps = Maps(storage.root.path().join(ALL_MAPS).join(&volume.name));
                    let mut report = maps.unmap(storage, pod.uid(), &[device::link(&pod, &volume)])?;
                    report += device::remove_link(storage, &pod, &volume)?;
                    Ok(report)
                })
                .await
        }
        .boxed()
    }
}
