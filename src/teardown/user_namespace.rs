//! The range of user ids that a kubelet gave a pod for its user namespace. It is a file in the pod's directory and nothing
//! else, and it goes as a whole: a kubelet that finds one it cannot read does not start.

use super::on_disk::blocking;
use crate::{
    model::{failure::Failure, pod::PodView, trace::Step},
    node::{effects::Effects, fault::Fault, pod_dir::PodDir},
};

/// The file's name.
const FILE: &str = "userns";

/// Gives the range back, once nothing of the pod is left that has an owner in it. NotFound is success.
pub async fn release(dir: &PodDir, view: &PodView, effects: &Effects) -> Result<(), Vec<Failure>> {
    // Of a pod whose object was never seen nobody knows whether it has one.
    let is_known = !view.containers.is_empty();
    if is_known && !view.user_namespace {
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
