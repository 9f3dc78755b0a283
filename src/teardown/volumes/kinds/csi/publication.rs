//! The mount of a volume for one pod, which its driver unmounts.

use std::{path::Path, sync::Arc};

use tonic::Code;

use super::{
    super::super::{
        kind::Approved,
        storage::{Storage, fault_of},
    },
    identity::Identity,
};
use crate::{
    model::failure::Reasoned as _,
    node::{
        dirs::Dir,
        fault::{Cause, Fault},
        grpc::GrpcError,
        holders::{Holders, holders},
        mounts::MountTable,
        plugins::DriverUnavailable,
        unmounts::Call,
    },
    teardown::on_disk::DiskReport,
};

/// Maximum number of mounts on one path that are unpublished one after another.
const LAYERS: usize = 16;

/// Why a driver has not done its work.
pub enum DriverFailure {
    Unavailable(DriverUnavailable),
    Refused(GrpcError),
}

/// Calls the driver to unpublish the volume from `target`, until the mount table has no mount there. If the driver publishes with
/// a link, it is never followed.
pub async fn unpublish(
    storage: &Arc<Storage>,
    identity: Option<&Identity>,
    target: &Path,
    approved: &Approved,
) -> Result<DiskReport, Vec<Fault>> {
    const VERB: &str = "unpublish";
    let mut report = DiskReport::default();
    let mut mounted = count(storage, target).await?;
    if mounted == 0 && storage.unpublished.contains(target) && is_absent(storage, target).await? {
        return Ok(report);
    }
    let is_link = mounted == 0 && is_link(storage, target).await?;
    for _ in 0..LAYERS {
        match unmount_inside(storage, target).await {
            Ok(done) => report += done,
            // A mount that was covered can be reached after the upper one is unmounted.
            Err(_) if mounted > 1 => {}
            Err(faults) => return Err(faults),
        }
        let Some(identity) = identity else {
            if mounted == 0 && !is_link {
                // It is not mounted yet, or already unmounted.
                return Ok(report);
            }
            let why = format!(
                "{}, and neither the kubelet's vol_data.json, nor a staged volume, nor a PersistentVolume of this name identifies \
                 its driver; the pod continues once {} by hand",
                if is_link {
                    "it is a symlink to a volume"
                } else {
                    "it is mounted"
                },
                if is_link { "that is removed" } else { "it is unmounted" },
            );
            return Err(fault_of(VERB, target, &why));
        };
        let done = match storage.csi(&identity.driver).await? {
            Ok(driver) => {
                let target = storage.root.as_given(target);
                let done = driver.unpublish(&identity.handle, &target, &storage.effects).await;
                done.map_err(DriverFailure::Refused)
            }
            // A driver that does not run mounts nothing.
            Err(unavailable) if mounted == 0 && unavailable.certain && !is_link => {
                tracing::warn!(driver = identity.driver, volume = identity.handle, why = %unavailable.why, "Nothing is mounted for the pod; the driver is not called");
                return Ok(report);
            }
            Err(unavailable) => Err(DriverFailure::Unavailable(unavailable.why)),
        };
        if let Err(not_done) = done {
            if mounted == 0 && !not_done.is_blocked() {
                check_empty(storage, VERB, target).await?;
            }
            not_done
                .unless_unpublished(storage, VERB, identity, target, approved)
                .await?;
            return Ok(report);
        }
        match count(storage, target).await? {
            0 => {
                storage.unpublished.add(target);
                report.unmounted += mounted;
                return Ok(report);
            }
            left if left < mounted => mounted = left,
            _ => {
                let why = format!(
                    "driver {} reported success, but it is still mounted; the call is retried",
                    identity.driver
                );
                return Err(fault_of(VERB, target, &why));
            }
        }
    }
    Err(fault_of(
        VERB,
        target,
        &"it is still mounted after its driver has unpublished it several times",
    ))
}

/// Whether the driver has removed the path, as it has to.
async fn is_absent(storage: &Arc<Storage>, target: &Path) -> Result<bool, Vec<Fault>> {
    let path = target.to_owned();
    let is_absent = move |_: &Storage| {
        Ok(path
            .symlink_metadata()
            .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound))
    };
    storage.read_blocking(target, is_absent).await
}

async fn is_link(storage: &Arc<Storage>, target: &Path) -> Result<bool, Vec<Fault>> {
    let link = target.to_owned();
    storage.read_blocking(target, move |_| Ok(link.is_symlink())).await
}

// === impl DriverFailure ===

impl DriverFailure {
    fn is_blocked(&self) -> bool {
        matches!(self, Self::Refused(error) if error.is_blocked())
    }

    /// Returns nothing if the mount table has no mount at `path`, and the driver does not know the volume or a user has
    /// approved that it counts as unpublished and unstaged.
    pub async fn unless_unpublished(
        self,
        storage: &Arc<Storage>,
        verb: &'static str,
        identity: &Identity,
        path: &Path,
        approved: &Approved,
    ) -> Result<(), Vec<Fault>> {
        let mounts = table(storage).await?.mounts_at_or_below(&[path]);
        let mounted: Vec<_> = mounts.into_iter().map(|mount| mount.path).collect();
        let (why, is_unknown, driver_waits_for) = match self {
            Self::Refused(error) if !mounted.is_empty() || error.is_blocked() => {
                return Err(by_driver(storage, verb, path, error).await);
            }
            Self::Refused(error) => (error.to_string(), error.is_unknown_volume(), Vec::new()),
            Self::Unavailable(unavailable) => (unavailable.to_string(), false, unavailable.waits_for()),
        };
        let Identity { driver, handle } = identity;
        let volume = format!("volume {handle:?} of CSI driver {driver:?}");
        if mounted.is_empty() && (is_unknown || approved.contains(&volume)) {
            tracing::warn!(driver, volume = handle, path = %path.display(), why, "Volume is not mounted and counts as unpublished");
            return Ok(());
        }
        let cause = Cause::DriverFailed { why, volume, mounted };
        Err(vec![Fault::new(verb, path, cause).waiting_for(driver_waits_for)])
    }
}

/// Neither a driver nor the agent removes a mount point with files.
async fn check_empty(storage: &Arc<Storage>, verb: &'static str, target: &Path) -> Result<(), Vec<Fault>> {
    let dir = target.to_owned();
    // The mount point of a device is a file.
    let find = move |_: &Storage| Ok(Dir::open(&dir).ok().flatten().and_then(|dir| dir.left_files()));
    match storage.read_blocking(target, find).await? {
        None => Ok(()),
        Some(left) => Err(vec![Fault::new(verb, target, Cause::NotEmpty(left))]),
    }
}

/// Unmounts mounts of others inside the volume: the driver does not, and they would keep it busy.
async fn unmount_inside(storage: &Arc<Storage>, target: &Path) -> Result<DiskReport, Vec<Fault>> {
    let within = target.to_owned();
    storage
        .run_blocking("unmount", &target, move |storage| {
            match storage.all_mounts.unmount_all_below(&within, &storage.effects) {
                Ok(done) => Ok(DiskReport {
                    unmounted: done.unmounted,
                    removed: 0,
                }),
                Err(still) => Err(still.faults),
            }
        })
        .await
}

/// Number of mounts on the path.
pub async fn count(storage: &Arc<Storage>, path: &Path) -> Result<usize, Vec<Fault>> {
    table(storage).await.map(|table| table.mounts_on(path).len())
}

/// The current mount table.
pub async fn table(storage: &Arc<Storage>) -> Result<Arc<MountTable>, Vec<Fault>> {
    storage
        .read_blocking("the mount table", |storage| storage.all_mounts.read())
        .await
}

/// The driver's error as a fault, with the holders of the mount if it is busy.
async fn by_driver(storage: &Arc<Storage>, verb: &'static str, path: &Path, error: GrpcError) -> Vec<Fault> {
    let is_busy = matches!(&error, GrpcError::Failed { code, message, .. }
        if *code == Code::FailedPrecondition || message.to_ascii_lowercase().contains("busy"));
    let (cause, holders) = match error {
        GrpcError::Blocked { blocked, .. } => (Cause::Blocked(blocked), None),
        other if is_busy => match holders_of(storage, path).await {
            Some(holders) => (Cause::Message(format!("{other}; {holders}")), Some(holders)),
            None => (Cause::Message(other.to_string()), None),
        },
        other => (Cause::Message(other.to_string()), None),
    };
    vec![Fault::new(verb, path, cause).waiting_for(holders.iter().flat_map(Holders::waits_for))]
}

/// Holders of the mounts at or below this path.
async fn holders_of(storage: &Arc<Storage>, path: &Path) -> Option<Holders> {
    let busy = path.to_owned();
    let found = storage.read_blocking(path, move |storage| {
        let table = storage.all_mounts.read()?;
        let in_flight = &storage.effects.unmounting().in_flight;
        let found = holders(
            &storage.proc,
            &table,
            &table.mounts_at_or_below(&[&busy]),
            in_flight,
            Call::FindHolders,
        );
        Ok(found
            .into_values()
            .find(|it| !it.processes.is_empty() || it.is_incomplete))
    });
    found.await.ok().flatten()
}
