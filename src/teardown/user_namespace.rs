//! The range of user IDs of a pod with a user namespace. It is a file in the pod's directory, removed as a whole: a kubelet does
//! not start if it cannot read one.

use std::{fs, io, path::PathBuf};

use super::on_disk::blocking;
use crate::{
    model::{failure::Failure, pod::PodView, trace::Step},
    node::{effects::Effects, fault::Fault, pod_dir::PodDir},
};

/// Name of the file.
const FILE: &str = "userns";

/// The file that [`release`] removes, if there is one.
pub fn file_to_remove(dir: &PodDir, view: &PodView) -> io::Result<Option<PathBuf>> {
    let path = dir.path().join(FILE);
    match fs::symlink_metadata(&path) {
        _ if !may_have_range(view) => Ok(None),
        Ok(_) => Ok(Some(path)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Without the pod's object it is unknown whether the pod has a user namespace.
fn may_have_range(view: &PodView) -> bool {
    view.user_namespace || view.containers.is_empty()
}

/// Releases the range, when no file or process of the pod has one of its user IDs. A missing file is success.
pub async fn release(dir: &PodDir, view: &PodView, effects: &Effects) -> Result<(), Vec<Failure>> {
    if !may_have_range(view) {
        return Ok(());
    }
    let released = blocking(dir, effects, |dir, effects| {
        let one = |fault| vec![fault];
        match dir.open().map_err(one)? {
            Some(dir) => dir.remove_file(FILE.as_ref(), effects).map(drop).map_err(one),
            None => Ok(()),
        }
    });
    let failure = |fault: &Fault| Failure::new(Step::Cleanup, "", fault);
    released.await.map_err(|faults| faults.iter().map(failure).collect())
}
