//! Identifies the volume that is published or staged at a path, from files on the node and from the API server.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    super::super::storage::{Storage, fault_of},
    identity::{Identity, by_persistent_volume, handle_in_use, is_of},
    staged::{self, Staged},
    staging_path::VERB,
    users,
};
use crate::node::{
    csi_files::VolumeDataFile,
    fault::Fault,
    pod_dir::{PodDir, VolumeDir},
};

/// Identifies a volume by the pod's file, else by the staged volume that it is a mount of, else by the PersistentVolume.
pub async fn identify_volume(
    storage: &Arc<Storage>,
    pod: &PodDir,
    volume: &VolumeDir,
    data: &VolumeDataFile,
    target: &Path,
) -> Result<Option<Identity>, Vec<Fault>> {
    match Identity::read(data, &pod.path().join(volume.relative())) {
        Ok(identity) => return Ok(Some(identity)),
        Err(why) => tracing::warn!(pod.uid = pod.uid(), %why, "Volume is not identified by its file"),
    }
    if let Some(staged) = identify_staged(storage, target.to_owned()).await? {
        return Ok(Some(staged));
    }
    by_persistent_volume(storage, &volume.name, target).await
}

/// The staged volume that this is a mount of.
async fn identify_staged(storage: &Arc<Storage>, target: PathBuf) -> Result<Option<Identity>, Vec<Fault>> {
    let what = target.clone();
    let found = storage
        .read_blocking(&what, move |storage| {
            let table = storage.all_mounts.read()?;
            let Some(mount) = table.mounts_on(&target).into_iter().next() else {
                return Ok(None);
            };
            let staged = staged::all(storage)?;
            Ok(staged
                .into_iter()
                .find(|staged| staged.mount(&table).is_some_and(|it| is_of(&mount, &it))))
        })
        .await?;
    let Some(staged) = found else { return Ok(None) };
    staged.identity(storage).await
}

// === impl Staged ===

impl Staged {
    /// The volume that is staged here: by the kubelet's file, by the file of a pod, or by `volumesInUse`.
    pub async fn identity(&self, storage: &Arc<Storage>) -> Result<Option<Identity>, Vec<Fault>> {
        let staged = self.clone();
        let identified = storage.read_blocking(&self.path, move |storage| match staged.read_identity()? {
            Ok(identified) => Ok(Some(identified)),
            Err(_) => users::each(storage, &mut |_, identified| {
                identified.ok().filter(|identified| staged.is_of(identified))
            }),
        });
        if let Some(identified) = identified.await? {
            return Ok(Some(identified));
        }
        let in_use = storage.cluster.in_use().await;
        let in_use = in_use.map_err(|why| fault_of(VERB, &self.path, &why))?;
        Ok(handle_in_use(&in_use, &self.driver, &self.name).map(|handle| Identity {
            driver: self.driver.clone(),
            handle,
        }))
    }
}
