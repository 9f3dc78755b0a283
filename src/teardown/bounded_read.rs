//! Reads for a diagnosis or a plan, each with a limit of time.

use std::{fmt::Display, sync::Arc, time::Duration};

use tokio::time::timeout;

use super::context::Context;
use crate::model::pod::PodView;

/// Limit of one read. The client waits a little longer.
pub const READ_LIMIT: Duration = Duration::from_millis(2500);

/// A fact, or why it could not be read.
pub type Fact<T> = Result<T, String>;

/// The object as the API server has it now, else as the watch last showed it, with the reason.
#[cfg(feature = "agent")]
pub async fn current_object(context: &Context, view: Arc<PodView>) -> (Arc<PodView>, Option<String>) {
    let read = timeout(READ_LIMIT, context.api.pod(&view.pod)).await;
    match read.map_err(late(READ_LIMIT)).and_then(|read| read.map_err(text)) {
        Ok(Some(object)) => (Arc::new(PodView::whole(object, true)), None),
        Ok(None) => (
            view,
            Some("a list by its name does not show it: it may just have been deleted".to_owned()),
        ),
        Err(why) => (view, Some(why)),
    }
}

/// Runs a read on a thread. One that hangs keeps its thread, and its answer is dropped.
pub async fn blocking_in<T: Send + 'static>(
    limit: Duration,
    context: &Arc<Context>,
    view: &Arc<PodView>,
    read: impl FnOnce(&Context, &PodView) -> Fact<T> + Send + 'static,
) -> Fact<T> {
    let (on_thread, view) = (Arc::clone(context), Arc::clone(view));
    let read = context.node.reads.run_blocking(move || read(&on_thread, &view));
    let read = timeout(limit, read).await.map_err(late(limit))?;
    read.map_err(text)?
}

pub fn late<E>(limit: Duration) -> impl Fn(E) -> String {
    move |_| format!("no answer within {limit:?}")
}

pub fn text(error: impl Display) -> String {
    error.to_string()
}
