//! Unstages a volume from all its staging paths when its last pod terminates, and then removes it from `volumesInUse`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::time::sleep;

use super::{
    super::super::{
        storage::{Storage, fault_of},
        volume::Volume,
    },
    identity::Identity,
    other_mounts::{mounted_alone, mounted_elsewhere},
    publication::{CsiVolume, DriverFailure},
    staging::{StagingPath, VERB},
    users::{self, User},
};
use crate::{
    model::failure::ok_if_empty,
    node::{
        csi_files::STAGING,
        dirs::Dir,
        fault::{Cause, Fault},
        mounts::Mount,
        namespaces,
        superblock::FileSystem,
    },
};

/// After this time without writes, a device has no writes left.
const NO_WRITES_PERIOD: Duration = Duration::from_secs(1);

// === impl CsiVolume ===

impl CsiVolume<'_> {
    /// Records the device that is published at `target` before it is unpublished, if no staging path shows it: that of a driver
    /// that does not stage, and a raw block device. Returns what is recorded.
    pub async fn record_published(self, target: &Path, staging: &StagingPath) -> Result<Vec<FileSystem>, Vec<Fault>> {
        let (at, staging) = (target.to_owned(), staging.clone());
        let find = self.storage.read_blocking(target, move |storage| {
            let devices: Vec<_> = match staging {
                StagingPath::Block { .. } => block_device(&at)?.into_iter().collect(),
                StagingPath::FileSystem { .. } => {
                    let table = storage.all_mounts.read()?;
                    let staged_at = staging.global();
                    let published = mounted_alone(&table, &at, &[at.clone(), staged_at.clone()]);
                    let staged = table.mounts_at_or_below(&[staged_at]);
                    let is_staged = |it: &&Mount| staged.iter().any(|mount| mount.device == it.device);
                    let published = published.iter().filter(|it| !is_staged(it));
                    published.filter_map(Mount::disk).collect()
                }
            };
            file_systems(storage, &devices)
        });
        let published = find.await?;
        self.record(&published).await;
        Ok(published)
    }

    /// Records file systems before a call: a driver may unmount them and then fail, or the agent may crash.
    async fn record(self, file_systems: &[FileSystem]) {
        if file_systems.is_empty() {
            return;
        }
        self.change_recorded(|recorded| add_missing(recorded, file_systems));
        // The journal reports its errors. As everywhere, the teardown continues without it.
        self.storage.journal.durable().await.ok();
    }

    fn change_recorded(self, change: impl FnOnce(&mut Vec<FileSystem>)) {
        let volume = self.identity.unique_name();
        let mut recorded = self.storage.journal.maybe_active_file_systems(&volume);
        change(&mut recorded);
        self.storage.journal.set_maybe_active_file_systems(&volume, recorded);
    }

    /// Unstages the volume, unless another pod uses it, and allows its detach. `except` is the volume of the pod whose use ends now.
    /// `known` are paths where the volume may be staged, regardless of their files. `published` was just unpublished.
    pub async fn unstage_unless_used(
        self,
        except: Option<&Volume>,
        known: Vec<StagingPath>,
        published: &[FileSystem],
    ) -> Result<(), Vec<Fault>> {
        let (storage, has_pod) = (self.storage, except.is_some());
        let Some(mounted_at) = known.first().map(StagingPath::global) else {
            return Ok(());
        };
        let stages = match self.staging_paths_unless_used(except, known).await? {
            Ok(stages) => stages,
            Err(user) => {
                self.leave_staged(&user, published);
                return Ok(());
            }
        };
        let name = self.identity.unique_name();
        let globals: Vec<_> = stages.iter().map(StagingPath::global).collect();
        // File systems that an earlier attempt has unmounted, and that may still be active.
        let mut unstaged = storage.journal.maybe_active_file_systems(&name);
        unstaged.retain(|it| !published.contains(it));
        drop_replaced(storage, &globals, &mut unstaged).await?;
        let mut faults = Vec::new();
        for stage in &stages {
            let done = self.unstage(stage, &globals, &unstaged, published).await;
            faults.extend(done.err().into_iter().flatten());
        }
        ok_if_empty(faults)?;
        storage.remove_in_use(&name, &mounted_at).await?;
        storage.journal.set_maybe_active_file_systems(&name, Vec::new());
        remove_files(storage, stages, has_pod).await
    }

    fn leave_staged(self, user: &User, published: &[FileSystem]) {
        let Identity { driver, handle: volume } = self.identity;
        if user.identity.is_ok() {
            let user = &user.pod;
            tracing::debug!(driver, volume, user, "Another pod uses the volume; it stays staged");
            // The last pod that uses it records its device again.
            self.change_recorded(|recorded| recorded.retain(|it| !published.contains(it)));
        } else {
            tracing::warn!(driver, volume, why = %user, "Another pod may use the volume; it stays staged");
        }
    }

    /// All paths where the volume may be staged. The inner error is a pod that uses it, or may use it.
    async fn staging_paths_unless_used(
        self,
        except: Option<&Volume>,
        known: Vec<StagingPath>,
    ) -> Result<Result<Vec<StagingPath>, User>, Vec<Fault>> {
        let (identity, except) = (self.identity.clone(), except.cloned());
        let find = self.storage.read_blocking("staged volumes", move |storage| {
            match users::find_user(storage, &identity, except.as_ref())? {
                Some(user) => Ok(Err(user)),
                None => find_staging_paths(storage, &identity, known).map(Ok),
            }
        });
        find.await
    }

    /// Adds the mounts at the volume's staging paths to faults with its mounts, unless another pod uses it: a user who unmounts it
    /// without its driver unmounts them next.
    pub async fn with_staging_mounts(
        self,
        own: &Volume,
        known: Vec<StagingPath>,
        mut faults: Vec<Fault>,
    ) -> Vec<Fault> {
        let Ok(Ok(stages)) = self.staging_paths_unless_used(Some(own), known).await else {
            return faults;
        };
        let Ok(table) = self.storage.table().await else {
            return faults;
        };
        let globals: Vec<_> = stages.iter().map(StagingPath::global).collect();
        let staged = table.mounts_at_or_below(&globals);
        for fault in &mut faults {
            if let Cause::DriverFailed { mounted, .. } = &mut fault.cause
                && !mounted.is_empty()
            {
                mounted.extend(staged.iter().map(|mount| mount.path.clone()));
            }
        }
        faults
    }

    /// Calls the driver to unstage this path, unless neither mount nor directory is left. `globals` are all staging paths of the
    /// volume. File systems that were `unstaged` earlier or `published` until now may still be active.
    async fn unstage(
        self,
        stage: &StagingPath,
        globals: &[PathBuf],
        unstaged: &[FileSystem],
        published: &[FileSystem],
    ) -> Result<(), Vec<Fault>> {
        let (storage, global) = (self.storage, &stage.global());
        let before = storage.table().await?;
        let mounted = before.mounts_at_or_below(&[global]);
        if mounted.is_empty() && unstaged.is_empty() && published.is_empty() {
            let stage = stage.clone();
            let may_be_staged = storage.read_blocking(global, move |_| stage.may_be_staged());
            if !may_be_staged.await? {
                return Ok(());
            }
        }
        if let Some(other) = mounted_elsewhere(&before, &storage.root, global, globals) {
            let why =
                format!("no pod uses it, but it is also mounted at {other:?}; it is unstaged after that is unmounted");
            return Err(fault_of(VERB, global, &why));
        }
        let mounted_alone = mounted_alone(&before, global, globals);
        check_no_other_mounts(storage, global, &mounted_alone).await?;
        let devices: Vec<_> = mounted_alone.iter().filter_map(Mount::disk).collect();
        let of_devices = storage.read_blocking("file systems", move |storage| file_systems(storage, &devices));
        let mut file_systems = of_devices.await?;
        add_missing(&mut file_systems, unstaged);
        add_missing(&mut file_systems, published);
        self.record(&file_systems).await;
        self.call_driver(global).await?;
        let (staged_at, was_active) = (Some(global.clone()), !unstaged.is_empty());
        check_inactive(storage, global, staged_at, file_systems, was_active).await?;
        if !mounted.is_empty() {
            tracing::info!(path = %global.display(), "Volume is unstaged");
        }
        Ok(())
    }

    /// Calls the driver, if it stages volumes. The mount table counts.
    async fn call_driver(self, global: &Path) -> Result<(), Vec<Fault>> {
        let CsiVolume { storage, identity, .. } = self;
        let mut can_stage = true;
        let done = match storage.csi(&identity.driver).await? {
            Err((unavailable, _)) => Err(DriverFailure::Unavailable(unavailable)),
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
        if let Err(failure) = done {
            self.check_unpublished(VERB, global, failure).await?;
        }
        if storage.table().await?.mounts_at_or_below(&[global]).is_empty() {
            return Ok(());
        }
        let driver = &identity.driver;
        let why = match can_stage {
            true => format!("driver {driver} reported success, but it is still mounted; the call is retried"),
            false => format!("driver {driver} does not stage volumes, but something is mounted there; unmount it"),
        };
        Err(fault_of(VERB, global, &why))
    }
}

/// Removes the files of a volume that may be detached now. Those that a driver has left block no pod: housekeeping reports them.
/// Effects that the gate blocked are retried with the pod.
async fn remove_files(storage: &Arc<Storage>, stages: Vec<StagingPath>, has_pod: bool) -> Result<(), Vec<Fault>> {
    let mut faults = Vec::new();
    for stage in stages {
        let what = stage.data();
        let remove = move |storage: &Storage| stage.remove(storage);
        match storage.run_blocking("remove", &what, remove).await {
            Err(left) if has_pod && !left.iter().any(Fault::is_blocked) => {
                tracing::warn!(path = %what.display(), fault = left.first().map(ToString::to_string), "Volume is unstaged and has left files");
            }
            done => faults.extend(done.err().into_iter().flatten()),
        }
    }
    ok_if_empty(faults)
}

/// Adds all other staging paths of the volume. Blocks.
fn find_staging_paths(
    storage: &Storage,
    identity: &Identity,
    known: Vec<StagingPath>,
) -> Result<Vec<StagingPath>, Fault> {
    let mut all = Vec::new();
    let mut add = |stage| {
        if !all.contains(&stage) {
            all.push(stage);
        }
    };
    known.into_iter().for_each(&mut add);
    if let Some(staged) = StagingPath::file_system(storage, identity)
        && Dir::open(&staged.data())?.is_some()
    {
        add(staged);
    }
    for stage in StagingPath::all_block(storage)? {
        if stage.read_identity()?.as_ref() == Ok(identity) {
            add(stage);
        }
    }
    Ok(all)
}

fn file_systems(storage: &Storage, devices: &[(u32, u32)]) -> Result<Vec<FileSystem>, Fault> {
    let file_systems = devices.iter().map(|&device| FileSystem::on(device, &storage.sys_block));
    file_systems.collect()
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
    let (table, staging) = (storage.table().await?, storage.root.path().join(STAGING));
    let of_others =
        |mount: &&Mount| mount.path.starts_with(&staging) && !paths.iter().any(|path| mount.path.starts_with(path));
    let others: Vec<_> = table.all().filter(of_others).filter_map(Mount::disk).collect();
    unstaged.retain(|it| !others.contains(&it.device));
    Ok(())
}

/// A driver that unstages may detach the device: no other mount namespace may still have these file systems mounted.
async fn check_no_other_mounts(storage: &Arc<Storage>, global: &Path, mounted: &[Mount]) -> Result<(), Vec<Fault>> {
    // Only file systems on a device are affected.
    let is_on_device = |mount: &&Mount| mount.disk().is_some() || mount.fs_type == "btrfs";
    let devices: Vec<_> = mounted.iter().filter(is_on_device).map(|it| it.device).collect();
    if devices.is_empty() {
        return Ok(());
    }
    let staging = global.to_owned();
    let keeps = storage.read_blocking("mount namespaces", move |storage| {
        let own = storage.all_mounts.read()?;
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
            Err(vec![fault.held_by([holder.pid])])
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
            return Ok(Err((why, Some(holder.pid))));
        }
        Ok(match active {
            None => Ok(left),
            Some(active) => {
                let why = format!(
                    "its file system is still active, by {}, though no mount table shows it: a process has a file open on a \
                     mount that was detached (umount -l); it may be detached from the node after that process has exited",
                    active.display()
                );
                Err((why, None))
            }
        })
    });
    let left = checked.await?.map_err(|(why, holder)| {
        let fault = Fault::new(VERB, volume, Cause::Message(why));
        vec![fault.held_by(holder)]
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
