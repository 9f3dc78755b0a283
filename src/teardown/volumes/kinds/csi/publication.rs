//! The mount of a volume for one pod, which its driver unmounts.

use std::{path::Path, sync::Arc};

use tonic::Code;

use super::{
    super::super::storage::{Approved, Storage, fault_of},
    identity::Identity,
};
use crate::node::{
    dirs::Dir,
    fault::{Cause, Fault},
    grpc::{CallFailure, GrpcError},
    holders::{Holders, holders},
    plugins::DriverUnavailable,
    unmounts::Call,
};

/// Maximum number of mounts on one path that are unpublished one after another.
const LAYERS: usize = 16;

/// A volume whose driver may be called. The caller holds its lock.
#[derive(Clone, Copy)]
pub struct CsiVolume<'a> {
    pub storage: &'a Arc<Storage>,
    pub identity: &'a Identity,
    pub approved: &'a Approved,
}

/// Why a driver has not done its work.
pub enum DriverFailure {
    Unavailable(DriverUnavailable),
    Refused(GrpcError),
}

/// Calls the driver to unpublish the volume from `target`, until the mount table has no mount there. If the driver publishes with
/// a link, it is never followed.
pub async fn unpublish(storage: &Arc<Storage>, volume: Option<CsiVolume<'_>>, target: &Path) -> Result<(), Vec<Fault>> {
    const VERB: &str = "unpublish";
    let (mut mounted, is_link) = mounts_or_link(storage, target).await?;
    for _ in 0..LAYERS {
        match unmount_inside(storage, target).await {
            Ok(()) => {}
            // A mount that was covered can be reached after the upper one is unmounted.
            Err(_) if mounted > 1 => {}
            Err(faults) => return Err(faults),
        }
        let Some(volume) = volume else {
            // It is not mounted yet, or already unmounted.
            return match mounted == 0 && !is_link {
                true => Ok(()),
                false => Err(unidentified(VERB, target, is_link)),
            };
        };
        let identity = volume.identity;
        let done = match storage.csi(&identity.driver).await? {
            Ok(driver) => {
                let target = storage.root.as_given(target);
                let done = driver.unpublish(&identity.handle, &target, &storage.effects).await;
                done.map_err(DriverFailure::Refused)
            }
            // A driver that does not run mounts nothing.
            Err((unavailable, true)) if mounted == 0 && !is_link => {
                tracing::warn!(driver = identity.driver, volume = identity.handle, why = %unavailable, "Nothing is mounted for the pod; the driver is not called");
                return Ok(());
            }
            Err((unavailable, _)) => Err(DriverFailure::Unavailable(unavailable)),
        };
        if let Err(failure) = done {
            if mounted == 0 && !matches!(&failure, DriverFailure::Refused(error) if error.is_blocked()) {
                check_empty(storage, VERB, target).await?;
            }
            volume.check_unpublished(VERB, target, failure).await?;
            return Ok(());
        }
        match storage.table().await?.mounts_on(target).len() {
            0 => return Ok(()),
            left if left < mounted => mounted = left,
            _ => {
                let driver = &identity.driver;
                let why = format!("driver {driver} reported success, but it is still mounted; the call is retried");
                return Err(fault_of(VERB, target, &why));
            }
        }
    }
    let why = "it is still mounted after its driver has unpublished it several times";
    Err(fault_of(VERB, target, &why))
}

/// Number of mounts on the target, and whether it is a symlink.
async fn mounts_or_link(storage: &Arc<Storage>, target: &Path) -> Result<(usize, bool), Vec<Fault>> {
    let path = target.to_owned();
    let read = move |storage: &Storage| {
        let mounts = storage.all_mounts.read()?.mounts_on(&path).len();
        // A mounted file system may not answer.
        Ok((mounts, mounts == 0 && path.is_symlink()))
    };
    storage.read_blocking(target, read).await
}

fn unidentified(verb: &'static str, target: &Path, is_link: bool) -> Vec<Fault> {
    let (state, remedy) = match is_link {
        true => ("it is a symlink to a volume", "that is removed"),
        false => ("it is mounted", "it is unmounted"),
    };
    let why = format!(
        "{state}, and neither the kubelet's vol_data.json nor a PersistentVolume of this name identifies its driver; the pod \
         continues once {remedy} by hand"
    );
    fault_of(verb, target, &why)
}

// === impl CsiVolume ===

impl CsiVolume<'_> {
    /// Checks after a failed call that the mount table has no mount at `path`, and that the driver does not know the volume or a user
    /// has approved that it counts as unpublished and unstaged.
    pub async fn check_unpublished(
        self,
        verb: &'static str,
        path: &Path,
        failure: DriverFailure,
    ) -> Result<(), Vec<Fault>> {
        let mounts = self.storage.table().await?.mounts_at_or_below(&[path]);
        let mounted: Vec<_> = mounts.into_iter().map(|mount| mount.path).collect();
        let (why, is_unknown) = match failure {
            DriverFailure::Refused(error) if !mounted.is_empty() || error.is_blocked() => {
                return Err(by_driver(self.storage, verb, path, error).await);
            }
            DriverFailure::Refused(error) => (error.to_string(), error.is_unknown_volume()),
            DriverFailure::Unavailable(why) => (why.to_string(), false),
        };
        let Identity { driver, handle } = self.identity;
        let volume = format!("volume {handle:?} of CSI driver {driver:?}");
        if mounted.is_empty() && (is_unknown || self.approved.contains(&volume)) {
            tracing::warn!(driver, volume = handle, path = %path.display(), why, "Volume is not mounted and counts as unpublished");
            return Ok(());
        }
        let cause = Cause::DriverFailed { why, volume, mounted };
        Err(vec![Fault::new(verb, path, cause)])
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
async fn unmount_inside(storage: &Arc<Storage>, target: &Path) -> Result<(), Vec<Fault>> {
    let within = target.to_owned();
    let unmount = move |storage: &Storage| {
        let unmounted = storage.all_mounts.unmount_all_below(&within, &storage.effects);
        unmounted.map(drop)
    };
    storage.run_blocking("unmount", target, unmount).await
}

/// The driver's error as a fault, with the holders of the mount if it is busy.
async fn by_driver(storage: &Arc<Storage>, verb: &'static str, path: &Path, error: GrpcError) -> Vec<Fault> {
    let is_busy = matches!(&error.failure, CallFailure::Failed { code, message }
        if *code == Code::FailedPrecondition || message.to_ascii_lowercase().contains("busy"));
    let text = error.to_string();
    let (cause, holders) = match error.failure {
        CallFailure::Blocked(blocked) => (Cause::Blocked(blocked), None),
        _ if is_busy => match holders_of(storage, path).await {
            Some(holders) => (Cause::Message(format!("{text}; {holders}")), Some(holders)),
            None => (Cause::Message(text), None),
        },
        _ => (Cause::Message(text), None),
    };
    vec![Fault::new(verb, path, cause).held_by(holders.iter().flat_map(Holders::pids))]
}

/// Holders of the mounts at or below this path.
async fn holders_of(storage: &Arc<Storage>, path: &Path) -> Option<Holders> {
    let busy = path.to_owned();
    let found = storage.read_blocking(path, move |storage| {
        let table = storage.all_mounts.read()?;
        let in_flight = &storage.effects.unmounting.in_flight;
        let mounts = table.mounts_at_or_below(&[&busy]);
        let found = holders(&storage.proc, &table, &mounts, in_flight, Call::FindHolders);
        let mut found = found.into_values();
        Ok(found.find(|it| !it.processes.is_empty() || it.is_incomplete))
    });
    found.await.ok().flatten()
}
