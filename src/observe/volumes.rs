//! Volumes that the kubelet unstages after the last of their pods, and takes out of the Node's `volumesInUse`.

use std::{fs, io, sync::Arc, time::Duration};

use tokio::time::timeout;

use super::leftovers::staged_volume;
use crate::{
    model::{
        observation::{Leftover, LeftoverKind},
        pod::PodView,
    },
    node::csi_files::unique_name,
    teardown::{
        bounded_read::{Fact, READ_LIMIT, blocking_in, late, text},
        context::Context,
        plan::{Plan, PlannedAction},
        volumes::is_csi_volume_used,
    },
};

/// Limit of the read of the Node.
const NODE_LIMIT: Duration = Duration::from_secs(5);

/// A CSI volume of a pod, as it was when the termination began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StagedVolume {
    driver: String,
    handle: String,
    /// Its staging path.
    path: String,
}

/// The CSI volumes that this plan unstages.
pub(super) fn volumes_to_unstage(plan: &Plan) -> Vec<StagedVolume> {
    let staged = plan.actions().filter_map(|(_, action)| match action {
        PlannedAction::UnstageVolume {
            driver: Some(driver),
            handle: Some(handle),
            path,
        } => Some(StagedVolume {
            driver: driver.clone(),
            handle: handle.clone(),
            path: path.clone(),
        }),
        _ => None,
    });
    staged.collect()
}

/// Those of the `staged` volumes that no pod of the node uses, but that are still staged, or in the Node's `volumesInUse`.
pub(super) async fn leftover_volumes(
    context: &Arc<Context>,
    view: &Arc<PodView>,
    staged: Vec<StagedVolume>,
) -> Fact<Vec<Leftover>> {
    if staged.is_empty() {
        return Ok(Vec::new());
    }
    let in_use = timeout(NODE_LIMIT, context.node.storage.api.volumes_in_use()).await;
    let in_use = in_use.map_err(late(NODE_LIMIT))?.map_err(text)?;
    blocking_in(READ_LIMIT, context, view, move |context, _| {
        let mut left = Vec::new();
        for StagedVolume { driver, handle, path } in &staged {
            if is_csi_volume_used(&context.node.storage, driver, handle).map_err(text)? {
                continue;
            }
            match fs::symlink_metadata(path) {
                Ok(_) => left.push(staged_volume(path, driver)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("{path}: {error}").into()),
            }
            let name = unique_name(driver, handle);
            if in_use.contains(&name) {
                let detail = "take it out of the Node's volumesInUse";
                left.push(Leftover::new(LeftoverKind::Volume, &name, detail));
            }
        }
        Ok(left)
    })
    .await
}
