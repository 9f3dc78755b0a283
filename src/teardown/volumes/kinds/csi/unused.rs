//! Unstages volumes that no pod uses: leftovers of a kubelet or agent that was interrupted.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use futures::stream::{self, StreamExt as _};

use super::{
    super::super::{
        kind::Approved,
        storage::{Storage, fault_of},
    },
    block_paths,
    identity::{Identity, UnidentifiedFile},
    other_mounts::mounted_elsewhere,
    publication::table,
    staged,
    staging_path::{StagingPath, VERB},
    unstage, users,
};
use crate::{
    node::{csi_files::STAGING, dirs::Dir, fault::Fault},
    teardown::on_disk::DiskReport,
};

/// Prefix of CSI volumes in `volumesInUse`.
const CSI: &str = "kubernetes.io/csi/";

const REMOVE_IN_USE: &str = "remove from volumesInUse";

/// Maximum number of volumes unstaged at the same time: a driver that hangs does not delay others.
const AT_ONCE: usize = 16;

/// Whether the volume of this name has been unused for long enough, and a retry is due.
pub type IsDue<'a> = dyn FnMut(&str) -> bool + Send + 'a;

/// Results for unused volumes.
#[derive(Debug, Default)]
#[must_use = "failures must be reported"]
pub struct UnstageResults {
    /// Results on disk.
    pub report: DiskReport,
    /// Failures by unique name of the volume, or by path if the volume is not identified.
    pub failed: BTreeMap<String, Vec<Fault>>,
}

// === impl UnstageResults ===

impl UnstageResults {
    fn record(&mut self, volume: impl Into<String>, done: Result<DiskReport, Vec<Fault>>) {
        match done {
            Ok(done) => self.report += done,
            Err(faults) => self.failed.entry(volume.into()).or_default().extend(faults),
        }
    }
}

/// Unstages volumes that no pod uses, and removes volumes that are not staged from `volumesInUse`: they could not be attached
/// elsewhere.
///
/// Calls `is_due` with the unique name of each: a volume that became unused just now may still be in progress.
pub async fn unstage_unused_volumes(storage: &Arc<Storage>, is_due: &mut IsDue<'_>) -> UnstageResults {
    let mut results = UnstageResults::default();
    let root = storage.root.path().display().to_string();
    let stages = storage.read_blocking(storage.root.path(), |storage| {
        let any = Dir::open(&storage.root.path().join(STAGING))?;
        any.map(|_| all(storage)).transpose()
    });
    let stages = match stages.await {
        Ok(Some(stages)) => stages,
        // No kubelet has mounted a CSI volume on this node.
        Ok(None) => return results,
        Err(faults) => {
            results.record(root, Err(faults));
            return results;
        }
    };
    let mut volumes = BTreeMap::<Identity, Vec<StagingPath>>::new();
    for stage in stages {
        let path = stage.global().display().to_string();
        match identity(storage, &stage).await {
            Ok(Some(identity)) => volumes.entry(identity).or_default().push(stage),
            Ok(None) => results.record(path, remove_unidentified(storage, stage).await),
            Err(faults) => results.record(path, Err(faults)),
        }
    }
    let mut due = Vec::new();
    for (identity, stages) in volumes {
        let name = identity.unique_name();
        let of = identity.clone();
        let user = storage.read_blocking(storage.root.path(), move |storage| users::find_user(storage, &of, None));
        match user.await {
            Ok(None) if is_due(&name) => due.push(unstage_volume(Arc::clone(storage), identity, stages)),
            Ok(Some(user)) if user.unread.is_some() && is_due(&name) => {
                let paths = stages.iter().flat_map(|stage| fault_of(VERB, stage.global(), &user));
                results.record(name, Err(paths.collect()));
            }
            Ok(_) => {}
            Err(faults) => results.record(name, Err(faults)),
        }
    }
    let mut due = stream::iter(due).buffer_unordered(AT_ONCE);
    while let Some((name, done)) = due.next().await {
        results.record(name, done);
    }
    match find_in_use_not_staged(storage).await {
        Ok((volumes, unread)) => {
            for volume in volumes.into_iter().filter(|volume| is_due(volume)) {
                let out = match &unread {
                    None => {
                        let _lock = storage.locks.lock(&volume).await;
                        remove_in_use(storage, &volume).await
                    }
                    Some(unread) => Err(fault_of(REMOVE_IN_USE, &volume, unread)),
                };
                results.record(volume, out.map(|()| DiskReport::default()));
            }
        }
        Err(faults) => results.record(root, Err(faults)),
    }
    results
}

/// Removes a volume without files on this node from `volumesInUse`, unless a file system of it may be active.
async fn remove_in_use(storage: &Arc<Storage>, volume: &str) -> Result<(), Vec<Fault>> {
    let mut unstaged = storage.journal.maybe_active_file_systems(volume);
    // It has no staging path, so that every staged mount is of another volume.
    unstage::drop_replaced(storage, &[], &mut unstaged).await?;
    if !unstaged.is_empty() {
        unstage::check_inactive(storage, Path::new(volume), None, unstaged, true).await?;
    }
    storage.remove_in_use(volume.to_owned(), Path::new(volume)).await?;
    storage.journal.set_maybe_active_file_systems(volume, Vec::new());
    Ok(())
}

async fn unstage_volume(
    storage: Arc<Storage>,
    identity: Identity,
    stages: Vec<StagingPath>,
) -> (String, Result<DiskReport, Vec<Fault>>) {
    let name = identity.unique_name();
    let _lock = storage.locks.lock(&name).await;
    let done = unstage::unstage_unless_used(&storage, &identity, None, stages, &[], &Approved::default()).await;
    (name, done)
}

/// All paths where a volume may be staged.
fn all(storage: &Storage) -> Result<Vec<StagingPath>, Fault> {
    let with_file_systems = staged::all(storage)?.into_iter().map(StagingPath::FileSystem);
    let devices = block_paths::all(storage)?.into_iter().map(StagingPath::Block);
    Ok(with_file_systems.chain(devices).collect())
}

async fn identity(storage: &Arc<Storage>, stage: &StagingPath) -> Result<Option<Identity>, Vec<Fault>> {
    match stage {
        StagingPath::FileSystem(staged) => staged.identity(storage).await,
        StagingPath::Block(paths) => paths.identity(storage).await,
    }
}

/// Removes the directory of an unidentified volume. The kubelet leaves one for every volume of a driver that does not stage.
/// Anything else is reported, and stays.
async fn remove_unidentified(storage: &Arc<Storage>, stage: StagingPath) -> Result<DiskReport, Vec<Fault>> {
    let (data, global) = (stage.data(), stage.global());
    let of = stage.clone();
    let check = storage.read_blocking(&data, move |storage| {
        Ok((of.may_be_staged()?, users::find_user_of_unidentified(storage, &of)?))
    });
    let (may_be_staged, user) = check.await?;
    let table = table(storage).await?;
    let is_mounted = !table.mounts_at_or_below(&[&data, &global]).is_empty();
    let unknown = match stage {
        StagingPath::FileSystem(_) => "no file and no entry of volumesInUse identifies the volume",
        StagingPath::Block(_) => "neither the kubelet's vol_data.json nor a PersistentVolume identifies the volume",
    };
    let elsewhere = mounted_elsewhere(&table, &storage.root, &global, std::slice::from_ref(&global));
    if !is_mounted && !may_be_staged {
        // It has only directories, unless a pod has the device.
        return match (&stage, user) {
            (StagingPath::Block(_), Some(_)) => Ok(DiskReport::default()),
            _ => {
                storage
                    .run_blocking("remove", &data, move |storage| stage.remove(storage))
                    .await
            }
        };
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
async fn find_in_use_not_staged(
    storage: &Arc<Storage>,
) -> Result<(BTreeSet<String>, Option<UnidentifiedFile>), Vec<Fault>> {
    let why_not = |why: String| fault_of("get volumesInUse of", "the Node", &why);
    let mut in_use: BTreeSet<String> = storage.cluster.in_use().await.map_err(why_not)?.into_iter().collect();
    in_use.retain(|name| name.starts_with(CSI));
    if in_use.is_empty() {
        return Ok((in_use, None));
    }
    let (here, unread) = storage.read_blocking(storage.root.path(), identities).await?;
    Ok((in_use.difference(&here).cloned().collect(), unread))
}

/// Volumes with files on this node, and a file that does not identify its volume.
fn identities(storage: &Storage) -> Result<(BTreeSet<String>, Option<UnidentifiedFile>), Fault> {
    let (mut names, mut unread) = (BTreeSet::new(), None);
    let mut add = |identified: Result<Identity, UnidentifiedFile>| match identified {
        Ok(identity) => drop(names.insert(identity.unique_name())),
        Err(not) => drop(unread.get_or_insert(not)),
    };
    for stage in all(storage)? {
        add(match stage {
            StagingPath::FileSystem(staged) => staged.read_identity()?,
            StagingPath::Block(paths) => paths.read_identity()?,
        });
    }
    users::each(storage, &mut |_, identified| {
        add(identified);
        None::<()>
    })?;
    Ok((names, unread))
}
