//! Unstages volumes that no pod uses: leftovers of a kubelet or agent that was interrupted.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use futures::stream::{self, StreamExt as _};

use super::{
    super::super::storage::{Approved, Storage, fault_of},
    identity::Identity,
    other_mounts::mounted_elsewhere,
    publication::CsiVolume,
    staging::{StagingPath, VERB},
    unstage, users,
};
use crate::{
    node::{csi_files::staging_name, fault::Fault},
    why::Why,
};

/// Prefix of CSI volumes in `volumesInUse`.
const CSI: &str = "kubernetes.io/csi/";

const REMOVE_IN_USE: &str = "remove from volumesInUse";

/// Maximum number of volumes unstaged at the same time: a driver that hangs does not delay others.
const AT_ONCE: usize = 16;

/// Whether the volume of this name has been unused for long enough, and a retry is due.
pub type IsDue<'a> = dyn FnMut(&str) -> bool + Send + 'a;

/// Failures by unique name of the volume, or by path if the volume is not identified.
type Failed = BTreeMap<String, Vec<Fault>>;

/// Unstages volumes that no pod uses, and removes volumes that are not staged from `volumesInUse`: they could not be attached
/// elsewhere.
///
/// Calls `is_due` with the unique name of each: a volume that became unused just now may still be in progress. Returns the failures by
/// this name, or by path if a volume is not identified.
pub async fn unstage_unused_volumes(storage: &Arc<Storage>, is_due: &mut IsDue<'_>) -> Failed {
    let mut failed = Failed::default();
    let done = unstage_unused(storage, is_due, &mut failed).await;
    record(&mut failed, storage.root.path().display().to_string(), done);
    failed
}

fn record(failed: &mut Failed, volume: String, done: Result<(), Vec<Fault>>) {
    if let Err(faults) = done {
        failed.entry(volume).or_default().extend(faults);
    }
}

/// Fails only with what concerns all volumes.
async fn unstage_unused(storage: &Arc<Storage>, is_due: &mut IsDue<'_>, failed: &mut Failed) -> Result<(), Vec<Fault>> {
    let root = storage.root.path();
    let Some(stages) = storage.read_blocking(root, StagingPath::all).await? else {
        return Ok(());
    };
    let mut volumes = BTreeMap::<Identity, Vec<StagingPath>>::new();
    for stage in stages {
        let path = stage.global().display().to_string();
        match identify(storage, &stage).await {
            Ok(Some(identity)) => volumes.entry(identity).or_default().push(stage),
            Ok(None) => record(failed, path, remove_unidentified(storage, stage).await),
            Err(faults) => record(failed, path, Err(faults)),
        }
    }
    let mut due = Vec::new();
    for (identity, stages) in volumes {
        let name = identity.unique_name();
        let of = identity.clone();
        let user = storage.read_blocking(root, move |storage| users::find_user(storage, &of, None));
        match user.await {
            Ok(None) if is_due(&name) => due.push(unstage_volume(storage, identity, stages)),
            Ok(Some(user)) if user.identity.is_err() && is_due(&name) => {
                let paths = stages.iter().flat_map(|stage| fault_of(VERB, stage.global(), &user));
                record(failed, name, Err(paths.collect()));
            }
            Ok(_) => {}
            Err(faults) => record(failed, name, Err(faults)),
        }
    }
    let mut due = stream::iter(due).buffer_unordered(AT_ONCE);
    while let Some((name, done)) = due.next().await {
        record(failed, name, done);
    }
    let (volumes, unread) = find_in_use_not_staged(storage).await?;
    for volume in volumes.into_iter().filter(|volume| is_due(volume)) {
        let out = match &unread {
            None => remove_in_use(storage, &volume).await,
            Some(unread) => Err(fault_of(REMOVE_IN_USE, &volume, unread)),
        };
        record(failed, volume, out);
    }
    Ok(())
}

/// The volume that is staged here: by the kubelet's file, else by the file of a pod that uses it, or for a raw block volume by its
/// PersistentVolume.
async fn identify(storage: &Arc<Storage>, stage: &StagingPath) -> Result<Option<Identity>, Vec<Fault>> {
    let of = stage.clone();
    let identity = storage.read_blocking(stage.data(), move |storage| match (of.read_identity()?, &of) {
        (Ok(identity), _) => Ok(Some(identity)),
        (Err(_), StagingPath::FileSystem { driver, digest, .. }) => {
            let mut users = Vec::new();
            let read = users::read_users(storage, &mut users);
            let mut used = users.into_iter().filter_map(|user| user.identity.ok());
            match used.find(|it| it.driver == *driver && staging_name(&it.handle) == *digest) {
                Some(found) => Ok(Some(found)),
                None => read.map(|()| None),
            }
        }
        (Err(_), StagingPath::Block { .. }) => Ok(None),
    });
    match (identity.await?, stage) {
        (None, StagingPath::Block { volume, .. }) => {
            Identity::of_persistent_volume(storage, volume, &stage.data()).await
        }
        (identity, _) => Ok(identity),
    }
}

/// Removes a volume without files on this node from `volumesInUse`, unless a file system of it may be active.
async fn remove_in_use(storage: &Arc<Storage>, volume: &str) -> Result<(), Vec<Fault>> {
    let _lock = storage.locks.lock(volume).await;
    let mut unstaged = storage.journal.maybe_active_file_systems(volume);
    // It has no staging path, so that every staged mount is of another volume.
    unstage::drop_replaced(storage, &[], &mut unstaged).await?;
    if !unstaged.is_empty() {
        unstage::check_inactive(storage, Path::new(volume), None, unstaged, true).await?;
    }
    storage.remove_in_use(volume, Path::new(volume)).await?;
    storage.journal.set_maybe_active_file_systems(volume, Vec::new());
    Ok(())
}

async fn unstage_volume(
    storage: &Arc<Storage>,
    identity: Identity,
    stages: Vec<StagingPath>,
) -> (String, Result<(), Vec<Fault>>) {
    let name = identity.unique_name();
    let _lock = storage.locks.lock(&name).await;
    let volume = CsiVolume {
        storage,
        identity: &identity,
        approved: &Approved::default(),
    };
    let done = volume.unstage_unless_used(None, stages, &[]).await;
    (name, done)
}

/// Removes the directory of an unidentified volume. The kubelet leaves one for every volume of a driver that does not stage.
/// Anything else is reported, and stays.
async fn remove_unidentified(storage: &Arc<Storage>, stage: StagingPath) -> Result<(), Vec<Fault>> {
    let (data, global) = (stage.data(), stage.global());
    let of = stage.clone();
    let check = storage.read_blocking(&data, move |storage| {
        Ok((of.may_be_staged()?, users::find_user_of_unidentified(storage, &of)?))
    });
    let (may_be_staged, user) = check.await?;
    let table = storage.table().await?;
    let is_mounted = !table.mounts_at_or_below(&[&data, &global]).is_empty();
    let unknown = match stage {
        StagingPath::FileSystem { .. } => "no file identifies the volume",
        StagingPath::Block { .. } => "neither the kubelet's vol_data.json nor a PersistentVolume identifies the volume",
    };
    let elsewhere = mounted_elsewhere(&table, &storage.root, &global, std::slice::from_ref(&global));
    if !is_mounted && !may_be_staged {
        // It has only directories, unless a pod has the device.
        if matches!(stage, StagingPath::Block { .. }) && user.is_some() {
            return Ok(());
        }
        let remove = move |storage: &Storage| stage.remove(storage);
        return storage.run_blocking("remove", &data, remove).await;
    }
    let why = match (user, elsewhere) {
        (Some(user), _) => format!("{unknown}, and {user}"),
        (None, Some(other)) => format!("{unknown}; no pod is known to use it, but it is also mounted at {other:?}"),
        (None, None) => {
            format!("{unknown}, and no pod uses it; unmount it and remove its directory by hand")
        }
    };
    Err(fault_of(VERB, global, &why))
}

/// Volumes in use without any file on this node, and a file that may be about any of them.
async fn find_in_use_not_staged(storage: &Arc<Storage>) -> Result<(BTreeSet<String>, Option<Why>), Vec<Fault>> {
    let in_use = storage.api.volumes_in_use().await;
    let in_use = in_use.map_err(|why| fault_of("get volumesInUse of", "the Node", &why))?;
    let mut in_use: BTreeSet<String> = in_use.into_iter().collect();
    in_use.retain(|name| name.starts_with(CSI));
    if in_use.is_empty() {
        return Ok((in_use, None));
    }
    let (here, unread) = storage.read_blocking(storage.root.path(), identities).await?;
    Ok((in_use.difference(&here).cloned().collect(), unread))
}

/// Volumes with files on this node, and a file that does not identify its volume.
fn identities(storage: &Storage) -> Result<(BTreeSet<String>, Option<Why>), Fault> {
    let (mut names, mut unread) = (BTreeSet::new(), None);
    let mut add = |identified: Result<Identity, Why>| match identified {
        Ok(identity) => drop(names.insert(identity.unique_name())),
        Err(not) => drop(unread.get_or_insert(not)),
    };
    for stage in StagingPath::all(storage)?.unwrap_or_default() {
        add(stage.read_identity()?);
    }
    let mut users = Vec::new();
    users::read_users(storage, &mut users)?;
    users.into_iter().for_each(|user| add(user.identity));
    Ok((names, unread))
}
