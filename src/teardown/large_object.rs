//! Reads objects that are not kept. Only a few are in memory at a time: one may have 1.5 MB.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::context::Context;
use crate::model::{
    failure::Failure,
    pod::{PodObject, PodView},
    trace::Step,
};

/// Objects in memory at a time.
const MAX_OBJECTS: usize = 16;

/// A permit for each.
pub fn permits() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_OBJECTS))
}

/// The pod as the API server has it now, after `project`. It may wait for others: drop the permit with the object, and hold none while
/// you wait for another one.
///
/// # Errors
/// When it cannot be read. This does not show that it is deleted: the watch does.
pub(super) async fn read<T>(
    context: &Context,
    view: &PodView,
    project: impl FnOnce(PodObject) -> T,
) -> Result<(T, Option<OwnedSemaphorePermit>), Failure> {
    // It is never closed.
    let permit = Arc::clone(&context.large_objects).acquire_owned().await.ok();
    let object = context.api.pod(&view.pod).await;
    let object = object.map_err(|error| error.failure(Step::Status))?;
    let object = object.ok_or_else(|| Failure::new(Step::Status, "", "a list by the pod's name does not show it"))?;
    Ok((project(object), permit))
}
