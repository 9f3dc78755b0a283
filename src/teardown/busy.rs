//! Adds mounts and their holders to an error of the runtime about a busy path.

use std::{path::PathBuf, sync::Arc};

use super::volumes::storage::Storage;
use crate::{
    model::{failure::Failure, waits_for::WaitsFor},
    node::{holders::holders, unmounts::Call},
};

/// EBUSY in errors of Go and libc.
const BUSY: &str = "device or resource busy";
/// Maximum number of mounts in the message.
const NAMED: usize = 8;

/// Adds the mounts at or below the busy path in the failure's message, with their holders. Other failures stay unchanged.
pub async fn with_holders(storage: &Arc<Storage>, failure: Failure) -> Failure {
    let Some(path) = busy_path(&failure.cause) else {
        return failure;
    };
    let dir = path.clone();
    let read = storage.read_blocking(&path, move |storage| {
        let table = storage.all_mounts.read()?;
        let mut busy = table.mounts_at_or_below(&[&dir]);
        busy.truncate(NAMED);
        let mut found = holders(
            &storage.proc,
            &table,
            &busy,
            &storage.effects.unmounting().in_flight,
            Call::FindHolders,
        );
        let named = busy
            .into_iter()
            .filter_map(|mount| Some((mount.path, found.remove(&mount.id)?)));
        Ok(named.collect::<Vec<_>>())
    });
    let found = match read.await {
        Ok(found) => found,
        Err(faults) => {
            let why = faults.first().map(ToString::to_string).unwrap_or_default();
            return with(failure, &format!("cannot read the holders of {path:?}: {why}"));
        }
    };
    let mut failure = failure;
    if found.is_empty() {
        let why = format!("nothing is mounted at or below {path:?} in this agent's mount namespace");
        return with(failure, &why);
    }
    for (mounted, holders) in found {
        let mounts = WaitsFor::Mounts(mounted.clone());
        let text = format!("mounted at {mounted:?}: {holders}");
        failure = with(failure, &text).waiting_for(holders.waits_for().chain([mounts]));
    }
    failure
}

fn with(failure: Failure, more: &str) -> Failure {
    let cause = format!("{}; {more}", failure.cause);
    Failure { cause, ..failure }
}

/// The absolute path before the text of EBUSY, if the error is about an unmount.
fn busy_path(error: &str) -> Option<PathBuf> {
    let (before, _) = error.split_once(BUSY)?;
    let is_about_unmount = ["unmount", "umount"].iter().any(|word| before.contains(word));
    let mut words = before.split_whitespace().rev();
    let trimmed = |word: &str| {
        let word = word.trim_matches(|it| matches!(it, '"' | '\'' | '`' | ':' | ',' | '(' | ')'));
        word.trim_end_matches('\\')
            .trim_start_matches("\\\"")
            .trim_end_matches("\\\"")
            .to_owned()
    };
    let path = words.find_map(|word| Some(trimmed(word)).filter(|word| word.starts_with('/') && word.len() > 1))?;
    is_about_unmount.then(|| path.into())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn busy_path_is_found_in_errors_of_runtimes() {
        let path = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/abc/rootfs";
        for error in [
            format!("StopContainer abc: Unknown: failed to unmount {path}: device or resource busy"),
            format!("failed to unmount target {path}: device or resource busy: unknown"),
            format!("cleanup container: unmount \"{path}\": device or resource busy"),
            format!("failed to stop: umount({path}): unmount {path}: device or resource busy; again"),
        ] {
            assert_eq!(busy_path(&error).as_deref(), Some(Path::new(path)), "{error}");
        }
        for error in [
            "StopContainer abc: no answer within 150s",
            "open /dev/sda: device or resource busy",
            "failed to unmount: device or resource busy",
            "failed to unmount /x: invalid argument",
        ] {
            assert_eq!(busy_path(error), None, "{error}");
        }
    }
}
