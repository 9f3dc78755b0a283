//! A volume taken off the node: from every place where it is staged, with the last pod that uses it in whichever way, and
//! only then no longer in use.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    super::super::{
        kind::Approved,
        storage::{Storage, in_words},
    },
    block::{self, BlockVolumePaths},
    identity::{Identity, mounted_elsewhere},
    publication::{NotDone, table},
    staging::Staged,
    users::{self, Use},
};
use crate::{
    node::{
        csi_files::{self, Found},
        dirs::Dir,
        effects::Outcome,
        fault::Fault,
        mounts::Mount,
        namespaces,
        superblock::FileSystem,
    },
    teardown::on_disk::DiskReport,
};

pub const VERB: &str = "unstage";

/// A place where a driver may have staged a volume. One volume may have several: as a file system and as a raw block device,
/// and as such for each PersistentVolume that is made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    FileSystem(Staged),
    Block(BlockVolumePaths),
}

// === impl Stage ===

impl Stage {
    /// What the driver was told to stage it at.
    pub fn global(&self) -> PathBuf {
        match self {
            Self::FileSystem(staged) => staged.global(),
            Self::Block(places) => places.staged(),
        }
    }

    /// The directory that holds the kubelet's file.
    pub fn data(&self) -> PathBuf {
        match self {
            Self::FileSystem(staged) => staged.path.clone(),
            Self::Block(places) => places.data(),
        }
    }

    /// All that a kubelet made for it. Blocks.
    pub fn remove(&self, storage: &Storage) -> Result<DiskReport, Vec<Fault>> {
        match self {
            Self::FileSystem(staged) => staged.remove(storage),
            Self::Block(places) => places.remove(storage),
        }
    }

    /// A volume that was begun to be staged has its directory; the kubelet writes its file before it calls a driver that
    /// stages. Blocks.
    pub fn may_be_staged(&self) -> Result<bool, Fault> {
        Ok(Dir::open(&self.global())?.is_some() && csi_files::read_at(&self.data())? != Found::Missing)
    }
}

/// Takes the volume off the node, unless somebody else uses it, and says that it may be detached. `but` is the use that ends
/// just now, and `known` are places where the volume may be staged, whatever their files say. Whoever calls has the volume's
/// turn.
pub async fn release(
    storage: &Arc<Storage>,
    identity: &Identity,
    but: Option<Use>,
    known: Vec<Stage>,
    approved: &Approved,
) -> Result<DiskReport, Vec<Fault>> {
    let mut report = DiskReport::default();
    let Some(place) = known.first().map(Stage::global) else {
        return Ok(report);
    };
    let ends = but.is_some();
    let of = identity.clone();
    let look = storage.look(&place, move |storage| match users::of(storage, &of, but.as_ref())? {
        Some(user) => Ok(Err(user)),
        None => stages(storage, &of, known).map(Ok),
    });
    let stages = match look.await? {
        Ok(stages) => stages,
        Err(user) => {
            let (volume, driver) = (&identity.handle, &identity.driver);
            match user.unread {
                None => {
                    tracing::debug!(
                        volume,
                        driver,
                        user = user.of.pod,
                        "Another pod uses the volume: it stays staged"
                    );
                }
                Some(_) => {
                    tracing::warn!(volume, driver, why = %user, "Another pod may use the volume: it stays staged");
                }
            }
            return Ok(report);
        }
    };
    let globals: Vec<_> = stages.iter().map(Stage::global).collect();
    let mut faults = Vec::new();
    for stage in &stages {
        match unstage(storage, identity, stage, &globals, approved).await {
            Ok(done) => report += done,
            Err(more) => faults.extend(more),
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    if report.withheld > 0 {
        return Ok(report);
    }
    storage.out_of_use(identity.unique_name(), &place).await?;
    // The volume is free by now. What a driver has left in a directory keeps nobody: housekeeping tells of it. What is only
    // held back is tried again with the pod.
    for stage in stages {
        let what = stage.data();
        match storage.work(&what, move |storage| stage.remove(storage)).await {
            Ok(done) => report += done,
            Err(faults) if ends && !faults.iter().any(Fault::is_blocked) => {
                tracing::warn!(path = %what.display(), fault = faults.first().map(ToString::to_string), "Of a volume that is unstaged something is left");
            }
            Err(more) => faults.extend(more),
        }
    }
    if faults.is_empty() { Ok(report) } else { Err(faults) }
}

/// These and all other places where the volume is staged. Blocks.
fn stages(storage: &Storage, identity: &Identity, known: Vec<Stage>) -> Result<Vec<Stage>, Fault> {
    let mut found = known;
    if let Some(staged) = Staged::of(storage, identity)
        && Dir::open(&staged.path)?.is_some()
    {
        found.push(Stage::FileSystem(staged));
    }
    for places in block::all(storage)? {
        if places.said()?.as_ref() == Ok(identity) {
            found.push(Stage::Block(places));
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

/// Has the driver unstage what is at this place; nothing to do where neither mount nor directory is left. `places` are all
/// of the volume's.
async fn unstage(
    storage: &Arc<Storage>,
    identity: &Identity,
    stage: &Stage,
    places: &[PathBuf],
    approved: &Approved,
) -> Result<DiskReport, Vec<Fault>> {
    let mut report = DiskReport::default();
    let global = &stage.global();
    let before = table(storage).await?;
    let mounted = before.mounts_at_or_below(&[global]);
    let lingering = storage.turns.lingering(global);
    let may_be_staged = {
        let stage = stage.clone();
        storage.look(global, move |_| stage.may_be_staged())
    };
    if mounted.is_empty() && lingering.is_none() && !may_be_staged.await? {
        // Nobody may remember that a file system lives on.
        is_free(storage, global, Vec::new()).await?;
        return Ok(report);
    }
    if let Some(place) = mounted_elsewhere(&before, storage.root.path(), global, places) {
        let why = format!("no pod uses it any more, but it is mounted on {place:?} as well");
        return Err(in_words(VERB, global, &why));
    }
    goes_with_ours(storage, global, &mounted).await?;
    let mut devices: Vec<_> = mounted.iter().map(|mount| mount.device).collect();
    devices.retain(|device| device.0 != 0);
    let of_device = move |storage: &Storage| {
        let file_systems = devices.iter().map(|&device| FileSystem::on(device, &storage.sys_block));
        file_systems.collect::<Result<Vec<_>, _>>()
    };
    let mut file_systems = storage.look("file systems", of_device).await?;
    let done = match storage.csi(&identity.driver).await? {
        Err(gone) => Err(NotDone::Gone(gone.why)),
        Ok(driver) => match driver.supports_staging().await {
            Ok(true) => {
                let done = driver.unstage(&identity.handle, global, &storage.effects).await;
                done.map_err(NotDone::Refused)
            }
            Ok(false) => Ok(Outcome::Nothing),
            Err(error) => Err(NotDone::Refused(error)),
        },
    };
    match done {
        Ok(Outcome::Withheld) => {
            report.withheld += 1;
            return Ok(report);
        }
        Ok(Outcome::Done | Outcome::Nothing) => {}
        Err(not_done) => not_done.matters(storage, VERB, identity, global, approved).await?,
    }
    if !table(storage).await?.mounts_at_or_below(&[global]).is_empty() {
        let why = format!(
            "driver {} says that it is done, but it is still mounted; it will be asked again",
            identity.driver
        );
        return Err(in_words(VERB, global, &why));
    }
    report.unmounted += mounted.len();
    file_systems.extend(lingering);
    if let Some(file_system) = file_systems.first() {
        storage.turns.set_lingering(global, Some(file_system.clone()));
    }
    is_free(storage, global, file_systems).await?;
    storage.turns.set_lingering(global, None);
    Ok(report)
}

/// A driver that unstages takes the device away: no other mount namespace may keep the file system by then.
async fn goes_with_ours(storage: &Arc<Storage>, global: &Path, mounted: &[Mount]) -> Result<(), Vec<Fault>> {
    // Only what lies on a device goes with one. btrfs counts its own.
    let on_devices = mounted
        .iter()
        .filter(|mount| mount.device.0 != 0 || mount.fs_type == "btrfs");
    let devices: Vec<_> = on_devices.map(|mount| mount.device).collect();
    if devices.is_empty() {
        return Ok(());
    }
    let place = global.to_owned();
    let keeps = storage.look("mount namespaces", move |storage| {
        let below = storage.below_root(&place);
        let own = storage.all_mounts.text()?;
        namespaces::find_keeping_process(&storage.proc, &own, &devices, &place, below)
    });
    match keeps.await? {
        None => Ok(()),
        Some(holder) => {
            let why = format!(
                "its file system would stay mounted in the mount namespace of {holder}, whose device its driver takes away; it is \
                 unstaged once that has ended or has unmounted it"
            );
            Err(in_words(VERB, global, &why))
        }
    }
}

/// A volume may be detached once its file systems are active nowhere. Another mount namespace may still have one mounted: there
/// it has the same device, and mostly the same end of its path. A detached mount is in no mount table.
async fn is_free(storage: &Arc<Storage>, global: &Path, file_systems: Vec<FileSystem>) -> Result<(), Vec<Fault>> {
    let place = global.to_owned();
    let kept_by = storage.look("mount namespaces", move |storage| {
        let (mut devices, mut active) = (Vec::new(), None);
        for then in &file_systems {
            let now = FileSystem::on(then.device, &storage.sys_block)?;
            if !then.is_replaced(&now) {
                devices.push(then.device);
                active = active.or(now.active().map(Path::to_owned));
            }
        }
        if let Some(holder) = namespaces::find_mounting_process(&storage.proc, &devices, storage.below_root(&place))? {
            return Ok(Some(format!(
                "its file system is still mounted in the mount namespace of {holder}; it may be detached once that has ended \
                 or has unmounted it"
            )));
        }
        Ok(active.map(|active| {
            format!(
                "its file system is still active, by {}, though no mount table shows it: a process has a file open on a mount \
                 that was detached (umount -l); it may be detached from the node once that process has ended",
                active.display()
            )
        }))
    });
    match kept_by.await? {
        None => Ok(()),
        Some(why) => Err(in_words(VERB, global, &why)),
    }
}
