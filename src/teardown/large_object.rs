//! Reads objects that are not kept. Only a few large ones are in memory at a time: one may have 1.5 MB.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::context::Context;
use crate::model::{
    failure::Failure,
    pod::{ApiObject, PodObject, PodView},
    trace::Step,
};

/// Large objects in memory at a time.
const MAX_OBJECTS: usize = 24;

/// A permit for each.
pub fn permits() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_OBJECTS))
}

/// The pod as the API server has it now, after `project`. A large one waits for others: drop the permit with the object, and hold none
/// while you wait for another one.
///
/// # Errors
/// When it cannot be read. This does not show that it is deleted: the watch does.
pub(super) async fn read<T>(
    context: &Context,
    view: &PodView,
    project: impl FnOnce(PodObject) -> T,
) -> Result<(T, Option<OwnedSemaphorePermit>), Failure> {
    let permit = match view.object {
        // It is never closed.
        ApiObject::Unread | ApiObject::NotKept { is_large: true } => {
            Arc::clone(&context.large_objects).acquire_owned().await.ok()
        }
        ApiObject::NotKept { is_large: false } | ApiObject::Present(_) | ApiObject::Gone(_) | ApiObject::NoServer => {
            None
        }
    };
    let object = context.api.pod(&view.pod).await;
    let object = object.map_err(|error| error.failure(Step::Status))?;
    let object = object.ok_or_else(|| Failure::new(Step::Status, "", "a list by the pod's name does not show it"))?;
    Ok((project(object), permit))
}
