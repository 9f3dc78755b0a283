//! Unstages a volume from all its staging paths when its last pod terminates, and then removes it from `volumesInUse`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::time::sleep;

use super::{
    super::super::{
        kind::Approved,
        storage::{Storage, fault_of},
    },
    block_paths,
    identity::Identity,
    other_mounts::{mounted_alone, mounted_elsewhere},
    publication::{DriverFailure, table},
    staged::Staged,
    staging_path::{StagingPath, VERB},
    users::{self, Use},
};
use crate::{
    model::waits_for::WaitsFor,
    node::{
        csi_files::STAGING,
        dirs::Dir,
        fault::{Cause, Fault},
        mounts::Mount,
        namespaces,
        superblock::FileSystem,
    },
    teardown::on_disk::DiskReport,
};

/// After this time without writes, a device has no writes left.
const NO_WRITES_PERIOD: Duration = Duration::from_secs(1);

/// Records the device that is published at `target` before it is unpublished, if no staging path shows it: that of a driver that does
/// not stage, and a raw block device. Returns what is recorded.
pub async fn record_published(
    storage: &Arc<Storage>,
    identity: &Identity,
    target: &Path,
    staging: &StagingPath,
) -> Result<Vec<FileSystem>, Vec<Fault>> {
    let (at, staging) = (target.to_owned(), staging.clone());
    let find = storage.read_blocking(target, move |storage| {
        let table = storage.all_mounts.read()?;
        let devices: Vec<_> = match staging {
            StagingPath::Block(_) => block_device(&at)?.into_iter().collect(),
            StagingPath::FileSystem(staged) => {
                let staged_at = staged.global();
                let published = mounted_alone(&table, &at, &[at.clone(), staged_at.clone()]);
                let staged = table.mounts_at_or_below(&[staged_at]);
                let is_staged = |it: &&Mount| staged.iter().any(|mount| mount.device == it.device);
                let published = published.iter().filter(|it| !is_staged(it));
                published.filter_map(Mount::disk).collect()
            }
        };
        let file_systems = devices.iter().map(|&device| FileSystem::on(device, &storage.sys_block));
        file_systems.collect::<Result<Vec<_>, _>>()
    });
    let published = find.await?;
    record(storage, identity, &published).await;
    Ok(published)
}

/// Records file systems before a call: a driver may unmount them and then fail, or the agent may crash.
async fn record(storage: &Storage, identity: &Identity, file_systems: &[FileSystem]) {
    if file_systems.is_empty() {
        return;
    }
    let volume = identity.unique_name();
    let mut recorded = storage.journal.maybe_active_file_systems(&volume);
    add_missing(&mut recorded, file_systems);
    storage.journal.set_maybe_active_file_systems(&volume, recorded);
    // The journal reports its errors. As everywhere, the teardown continues without it.
    storage.journal.durable().await.ok();
}

fn forget(storage: &Storage, identity: &Identity, file_systems: &[FileSystem]) {
    let volume = identity.unique_name();
    let mut recorded = storage.journal.maybe_active_file_systems(&volume);
    recorded.retain(|it| !file_systems.contains(it));
    storage.journal.set_maybe_active_file_systems(&volume, recorded);
}

/// Unstages the volume, unless another pod uses it, and allows its detach. `except` is the use that ends now. `known` are paths
/// where the volume may be staged, regardless of their files. `published` was just unpublished. The caller holds the volume's lock.
pub async fn unstage_unless_used(
    storage: &Arc<Storage>,
    identity: &Identity,
    except: Option<Use>,
    known: Vec<StagingPath>,
    published: &[FileSystem],
    approved: &Approved,
) -> Result<DiskReport, Vec<Fault>> {
    let mut report = DiskReport::default();
    let Some(mounted_at) = known.first().map(StagingPath::global) else {
        return Ok(report);
    };
    let has_pod = except.is_some();
    let of = identity.clone();
    let checked = storage.read_blocking(&mounted_at, move |storage| {
        match users::find_user(storage, &of, except.as_ref())? {
            Some(user) => Ok(Err(user)),
            None => find_staging_paths(storage, &of, known).map(Ok),
        }
    });
    let stages = match checked.await? {
        Ok(stages) => stages,
        Err(user) => {
            let (volume, driver) = (&identity.handle, &identity.driver);
            match user.unread {
                None => {
                    tracing::debug!(
                        volume,
                        driver,
                        user = user.of.pod,
                        "Another pod uses the volume; it stays staged"
                    );
                    // The last pod that uses it records its device again.
                    forget(storage, identity, published);
                }
                Some(_) => {
                    tracing::warn!(volume, driver, why = %user, "Another pod may use the volume; it stays staged");
                }
            }
            return Ok(report);
        }
    };
    let globals: Vec<_> = stages.iter().map(StagingPath::global).collect();
    let volume = identity.unique_name();
    // Unmounted by an earlier call, and may still be active.
    let mut unstaged = storage.journal.maybe_active_file_systems(&volume);
    unstaged.retain(|it| !published.contains(it));
    drop_replaced(storage, &globals, &mut unstaged).await?;
    let mut faults = Vec::new();
    for stage in &stages {
        match unstage(storage, identity, stage, &globals, (&unstaged, published), approved).await {
            Ok(done) => report += done,
            Err(more) => faults.extend(more),
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    storage.remove_in_use(volume.clone(), &mounted_at).await?;
    storage.journal.set_maybe_active_file_systems(&volume, Vec::new());
    // The volume may be detached now. Files that a driver has left block no pod: housekeeping reports them. Effects
    // that the gate blocked are retried with the pod.
    for stage in stages {
        let what = stage.data();
        match storage
            .run_blocking("remove", &what, move |storage| stage.remove(storage))
            .await
        {
            Ok(done) => report += done,
            Err(faults) if has_pod && !faults.iter().any(Fault::is_blocked) => {
                tracing::warn!(path = %what.display(), fault = faults.first().map(ToString::to_string), "Volume is unstaged and has left files");
            }
            Err(more) => faults.extend(more),
        }
    }
    if faults.is_empty() { Ok(report) } else { Err(faults) }
}

/// Adds the mounts at the volume's staging paths to faults with its mounts, unless another pod uses it: a user who unmounts it
/// without its driver unmounts them next.
pub async fn with_staging_mounts(
    storage: &Arc<Storage>,
    identity: &Identity,
    own: &Use,
    known: Vec<StagingPath>,
    mut faults: Vec<Fault>,
) -> Vec<Fault> {
    let (identity, own) = (identity.clone(), own.clone());
    let find = storage.read_blocking("the mount table", move |storage| {
        if users::find_user(storage, &identity, Some(&own))?.is_some() {
            return Ok(Vec::new());
        }
        let paths = find_staging_paths(storage, &identity, known)?;
        let globals: Vec<_> = paths.iter().map(StagingPath::global).collect();
        Ok(storage.all_mounts.read()?.mounts_at_or_below(&globals))
    });
    let staged = find.await.unwrap_or_default();
    for fault in &mut faults {
        if let Cause::DriverFailed { mounted, .. } = &mut fault.cause
            && !mounted.is_empty()
        {
            mounted.extend(staged.iter().map(|mount| mount.path.clone()));
        }
    }
    faults
}

/// Adds all other staging paths of the volume. Blocks.
fn find_staging_paths(
    storage: &Storage,
    identity: &Identity,
    known: Vec<StagingPath>,
) -> Result<Vec<StagingPath>, Fault> {
    let mut found = known;
    if let Some(staged) = Staged::for_volume(storage, identity)
        && Dir::open(&staged.path)?.is_some()
    {
        found.push(StagingPath::FileSystem(staged));
    }
    for paths in block_paths::all(storage)? {
        if paths.read_identity()?.as_ref() == Ok(identity) {
            found.push(StagingPath::Block(paths));
        }
    }
    let mut all = Vec::new();
    for stage in found {
        if !all.contains(&stage) {
            all.push(stage);
        }
    }
    Ok(all)
}

/// Calls the driver to unstage this path, unless neither mount nor directory is left. `paths` are all paths of the volume,
/// `unstaged` the file systems that an earlier attempt has unmounted, and `published` those that this one has.
async fn unstage(
    storage: &Arc<Storage>,
    identity: &Identity,
    stage: &StagingPath,
    paths: &[PathBuf],
    (unstaged, published): (&[FileSystem], &[FileSystem]),
    approved: &Approved,
) -> Result<DiskReport, Vec<Fault>> {
    let mut report = DiskReport::default();
    let global = &stage.global();
    let before = table(storage).await?;
    let mounted = before.mounts_at_or_below(&[global]);
    let may_be_staged = {
        let stage = stage.clone();
        storage.read_blocking(global, move |_| stage.may_be_staged())
    };
    if mounted.is_empty() && unstaged.is_empty() && published.is_empty() && !may_be_staged.await? {
        return Ok(report);
    }
    if let Some(other) = mounted_elsewhere(&before, &storage.root, global, paths) {
        let why =
            format!("no pod uses it, but it is also mounted at {other:?}; it is unstaged after that is unmounted");
        let fault = Fault::new(VERB, global, Cause::Message(why));
        return Err(vec![fault.waiting_for([WaitsFor::Mounts(other)])]);
    }
    let mounted_alone = mounted_alone(&before, global, paths);
    check_no_other_mounts(storage, global, &mounted_alone).await?;
    let devices: Vec<_> = mounted_alone.iter().filter_map(Mount::disk).collect();
    let of_device = move |storage: &Storage| {
        let file_systems = devices.iter().map(|&device| FileSystem::on(device, &storage.sys_block));
        file_systems.collect::<Result<Vec<_>, _>>()
    };
    let mut file_systems = storage.read_blocking("file systems", of_device).await?;
    add_missing(&mut file_systems, unstaged);
    add_missing(&mut file_systems, published);
    record(storage, identity, &file_systems).await;
    let mut can_stage = true;
    let done = match storage.csi(&identity.driver).await? {
        Err(unavailable) => Err(DriverFailure::Unavailable(unavailable.why)),
        Ok(driver) => match driver.supports_staging().await {
            Ok(true) => {
                let global = storage.root.as_given(global);
                let done = driver.unstage(&identity.handle, &global, &storage.effects).await;
                done.map_err(DriverFailure::Refused)
            }
            Ok(false) => {
                can_stage = false;
                Ok(())
            }
            Err(error) => Err(DriverFailure::Refused(error)),
        },
    };
    if let Err(not_done) = done {
        not_done
            .unless_unpublished(storage, VERB, identity, global, approved)
            .await?;
    }
    if !table(storage).await?.mounts_at_or_below(&[global]).is_empty() {
        let driver = &identity.driver;
        let why = match can_stage {
            true => format!("driver {driver} reported success, but it is still mounted; the call is retried"),
            false => format!("driver {driver} does not stage volumes, but something is mounted there; unmount it"),
        };
        return Err(fault_of(VERB, global, &why));
    }
    report.unmounted += mounted.len();
    let staged_at = Some(global.clone());
    check_inactive(storage, global, staged_at, file_systems, !unstaged.is_empty()).await?;
    Ok(report)
}

/// The number of the block device at this path.
fn block_device(path: &Path) -> Result<Option<(u32, u32)>, Fault> {
    let Some((dir, name)) = path.parent().zip(path.file_name()) else {
        return Ok(None);
    };
    let info = Dir::open(dir)?.map(|dir| dir.stat(name)).transpose()?.flatten();
    Ok(info.and_then(|info| info.block_device))
}

fn add_missing(to: &mut Vec<FileSystem>, from: &[FileSystem]) {
    for file_system in from {
        if !to.contains(file_system) {
            to.push(file_system.clone());
        }
    }
}

/// Drops file systems whose device number is that of another volume now, as the mount table shows: their disk was detached.
/// `paths` are all staging paths of their own volume.
pub(super) async fn drop_replaced(
    storage: &Arc<Storage>,
    paths: &[PathBuf],
    unstaged: &mut Vec<FileSystem>,
) -> Result<(), Vec<Fault>> {
    if unstaged.is_empty() {
        return Ok(());
    }
    let (table, staging) = (table(storage).await?, storage.root.path().join(STAGING));
    let of_others =
        |mount: &&Mount| mount.path.starts_with(&staging) && !paths.iter().any(|path| mount.path.starts_with(path));
    let others: Vec<_> = table.all().filter(of_others).filter_map(Mount::disk).collect();
    unstaged.retain(|it| !others.contains(&it.device));
    Ok(())
}

/// A driver that unstages may detach the device: no other mount namespace may still have these file systems mounted.
async fn check_no_other_mounts(storage: &Arc<Storage>, global: &Path, mounted: &[Mount]) -> Result<(), Vec<Fault>> {
    // Only file systems on a device are affected.
    let on_devices = mounted
        .iter()
        .filter(|mount| mount.disk().is_some() || mount.fs_type == "btrfs");
    let devices: Vec<_> = on_devices.map(|mount| mount.device).collect();
    if devices.is_empty() {
        return Ok(());
    }
    let staging = global.to_owned();
    let keeps = storage.read_blocking("mount namespaces", move |storage| {
        let own = storage.all_mounts.text()?;
        namespaces::find_keeping_process(&storage.proc, &own, &devices, &staging)
    });
    match keeps.await? {
        None => Ok(()),
        Some(holder) => {
            let why = format!(
                "its file system would stay mounted in the mount namespace of {holder} while its driver may detach the device; it \
                 is unstaged after that process has exited or has unmounted it"
            );
            let fault = Fault::new(VERB, global, Cause::Message(why));
            Err(vec![fault.waiting_for(holder.waits_for())])
        }
    }
}

/// Checks that the file systems are active nowhere, so that the volume may be detached. Another mount namespace may still have
/// one mounted. A detached mount is in no mount table.
///
/// `staged_at`: a staging path, where nothing is mounted now. If another program has unmounted it, only another namespace shows
/// what was there. `was_active`: they were active at an earlier attempt, so that their last writes may still be in progress.
pub(super) async fn check_inactive(
    storage: &Arc<Storage>,
    volume: &Path,
    staged_at: Option<PathBuf>,
    file_systems: Vec<FileSystem>,
    was_active: bool,
) -> Result<(), Vec<Fault>> {
    let checked = storage.read_blocking("mount namespaces", move |storage| {
        let (mut left, mut active) = (Vec::new(), None);
        for then in file_systems {
            let now = FileSystem::on(then.device, &storage.sys_block)?;
            if !then.is_replaced(&now) {
                left.push(then);
                active = active.or(now.active().map(Path::to_owned));
            }
        }
        let devices: Vec<_> = left.iter().map(|it| it.device).collect();
        let place = match &staged_at {
            Some(staged_at) => storage.all_mounts.read()?.place_of(staged_at),
            None => None,
        };
        if let Some(holder) = namespaces::find_mounting_process(&storage.proc, &devices, place.as_ref())? {
            let why = format!(
                "its file system is still mounted in the mount namespace of {holder}; it may be detached from the node after \
                 that process has exited or has unmounted it"
            );
            return Ok(Err((why, holder.waits_for().to_vec())));
        }
        Ok(match active {
            None => Ok(left),
            Some(active) => {
                let why = format!(
                    "its file system is still active, by {}, though no mount table shows it: a process has a file open on a \
                     mount that was detached (umount -l); it may be detached from the node after that process has exited",
                    active.display()
                );
                Err((why, vec![WaitsFor::Path(active)]))
            }
        })
    });
    let left = checked.await?.map_err(|(why, waits_for)| {
        let fault = Fault::new(VERB, volume, Cause::Message(why));
        vec![fault.waiting_for(waits_for)]
    })?;
    check_unwritten(storage, volume, &left, was_active).await
}

/// Checks that the kernel has finished the last writes. Those of a driver's unmount are finished when the driver returns, so that
/// one look is enough unless the file systems stayed active after it.
async fn check_unwritten(
    storage: &Storage,
    global: &Path,
    file_systems: &[FileSystem],
    was_active: bool,
) -> Result<(), Vec<Fault>> {
    let writes = || {
        let writes = file_systems.iter().map(|it| it.writes(&storage.sys_block));
        writes.collect::<Vec<_>>()
    };
    let before = writes();
    if !was_active && before.iter().flatten().all(|&(_, in_flight)| in_flight == 0) {
        return Ok(());
    }
    sleep(NO_WRITES_PERIOD).await;
    let now = writes();
    if before == now && now.iter().flatten().all(|&(_, in_flight)| in_flight == 0) {
        return Ok(());
    }
    let why = "its device was written during the last check; it is checked again";
    Err(fault_of(VERB, global, &why))
}
