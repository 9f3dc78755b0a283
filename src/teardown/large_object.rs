//! Reads objects that are too large to keep. All those that are in memory share a limit.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::context::Context;
use crate::model::{
    failure::Failure,
    pod::{PodObject, PodView},
    trace::Step,
};

/// KiB of large objects in memory.
pub const MAX_LARGE_KIB: u32 = 32 << 10;

/// Permits for large objects: one for each KiB.
pub fn permits() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_LARGE_KIB as usize))
}

/// The pod as the API server has it now, after `project`. A large object waits for others: drop the permit with the object, and hold
/// none while you wait for another one.
///
/// # Errors
/// When it cannot be read. This does not show that it is deleted: the watch does.
pub(super) async fn read<T>(
    context: &Context,
    view: &PodView,
    project: impl FnOnce(PodObject) -> T,
) -> Result<(T, Option<OwnedSemaphorePermit>), Failure> {
    let permit = match view.abridged.min(MAX_LARGE_KIB) {
        0 => None,
        // It is never closed.
        kib => Arc::clone(&context.large_objects).acquire_many_owned(kib).await.ok(),
    };
    let object = context.api.pod(&view.pod).await;
    let object = object.map_err(|error| error.failure(Step::Status))?;
    let object = object.ok_or_else(|| Failure::new(Step::Status, "", "a list by the pod's name does not show it"))?;
    Ok((project(object), permit))
}
