//! A volume's mount for one pod, which its driver takes away.

use std::{path::Path, sync::Arc};

use tonic::Code;

use super::{
    super::super::storage::{Storage, in_words},
    identity::Identity,
};
use crate::{
    node::{
        effects::Outcome,
        fault::{Cause, Fault},
        holders::{Holders, Lists, holders},
        mounts::MountTable,
        plugins::DriverError,
    },
    teardown::on_disk::DiskReport,
};

/// How many mounts on one path a driver is asked to take away, one after another.
const LAYERS: usize = 16;

/// Has the driver unpublish the volume from `target`, until the mount table shows nothing there any more.
pub async fn end(storage: &Arc<Storage>, identity: Option<&Identity>, target: &Path) -> Result<DiskReport, Vec<Fault>> {
    const VERB: &str = "unpublish";
    let mut report = DiskReport::default();
    let mut mounted = count(storage, target).await?;
    if mounted == 0 {
        is_no_link(storage, VERB, target).await?;
    }
    for _ in 0..LAYERS {
        match unmount_inside(storage, target).await {
            Ok(done) => report += done,
            // What an upper mount covers can be reached when that is gone.
            Err(_) if mounted > 1 => {}
            Err(faults) => return Err(faults),
        }
        let Some(identity) = identity else {
            if mounted == 0 {
                // Nobody has mounted it yet, or somebody has taken it away already.
                return Ok(report);
            }
            let why = "it is mounted, and neither the kubelet's vol_data.json, nor a staged volume, nor a \
                       PersistentVolume of this name tells which driver has to take it away; once it is unmounted by hand, \
                       the pod goes on";
            return Err(in_words(VERB, target, &why));
        };
        let driver = match storage.csi(&identity.driver).await? {
            Ok(driver) => driver,
            // Who is not there mounts nothing either.
            Err(gone) if mounted == 0 && gone.certain => {
                tracing::warn!(driver = identity.driver, volume = identity.handle, why = %gone.why, "Nothing is mounted for the pod: its end is not told to the driver");
                return Ok(report);
            }
            Err(gone) => return Err(in_words(VERB, target, &gone.why)),
        };
        match driver.unpublish(&identity.handle, target, &storage.effects).await {
            Ok(Outcome::Withheld) => {
                report.withheld += 1;
                return Ok(report);
            }
            Ok(Outcome::Done | Outcome::Nothing) => {}
            Err(error) => return Err(by_driver(storage, VERB, target, error).await),
        }
        match count(storage, target).await? {
            0 => {
                report.unmounted += mounted;
                return Ok(report);
            }
            left if left < mounted => mounted = left,
            _ => {
                let why = format!(
                    "driver {} says that it is done, but it is still mounted; it will be asked again",
                    identity.driver
                );
                return Err(in_words(VERB, target, &why));
            }
        }
    }
    Err(in_words(
        VERB,
        target,
        &"more is mounted on it than its driver takes away",
    ))
}

/// Nothing can be mounted on a link, and a driver might follow it.
async fn is_no_link(storage: &Arc<Storage>, verb: &'static str, target: &Path) -> Result<(), Vec<Fault>> {
    let place = target.to_owned();
    let is_link = storage.look(target, move |_| Ok(place.is_symlink())).await?;
    if is_link {
        let why = "it is a symlink, which its driver might follow to what is somebody else's; take it away";
        return Err(in_words(verb, target, &why));
    }
    Ok(())
}

/// What others have mounted within the volume is not the driver's to unmount, and would keep it busy.
async fn unmount_inside(storage: &Arc<Storage>, target: &Path) -> Result<DiskReport, Vec<Fault>> {
    let within = target.to_owned();
    storage
        .work(&target, move |storage| {
            match storage.all_mounts.unmount_all_below(&within, &storage.effects) {
                Ok(done) => Ok(DiskReport {
                    unmounted: done.unmounted,
                    withheld: done.withheld,
                    removed: 0,
                }),
                Err(still) => Err(still.faults),
            }
        })
        .await
}

/// How many mounts there are on the path.
pub async fn count(storage: &Arc<Storage>, path: &Path) -> Result<usize, Vec<Fault>> {
    table(storage).await.map(|table| table.on(path).len())
}

/// The mount table as it is now.
pub async fn table(storage: &Arc<Storage>) -> Result<Arc<MountTable>, Vec<Fault>> {
    storage
        .look("the mount table", |storage| storage.all_mounts.read())
        .await
}

/// What a driver answered, as a failure of what it was asked for; with who holds the mount, if it says that it is in use.
pub async fn by_driver(storage: &Arc<Storage>, verb: &'static str, path: &Path, error: DriverError) -> Vec<Fault> {
    let is_busy = matches!(&error, DriverError::Failed { code, message, .. }
        if *code == Code::FailedPrecondition || message.to_ascii_lowercase().contains("busy"));
    let cause = match error {
        DriverError::Held { held, .. } => Cause::Held(held),
        other if is_busy => match held_by(storage, path).await {
            Some(holders) => Cause::Words(format!("{other}; {holders}")),
            None => Cause::Words(other.to_string()),
        },
        other => Cause::Words(other.to_string()),
    };
    vec![Fault::new(verb, path, cause)]
}

/// Who holds what is mounted at this path or below.
async fn held_by(storage: &Arc<Storage>, path: &Path) -> Option<Holders> {
    let place = path.to_owned();
    let look = storage.look(path, move |storage| {
        let table = storage.all_mounts.read()?;
        let lists = Lists {
            proc: storage.proc.clone(),
            ..Lists::default()
        };
        let under_way = &storage.effects.unmounting().under_way;
        let found = holders(&lists, &table, &table.at_or_below(&[&place]), under_way);
        Ok(found.into_values().find(|it| !it.processes.is_empty() || it.cut_short))
    });
    look.await.ok().flatten()
}
