//! Reads for a diagnosis or a plan, each with a limit of time.

use std::{fmt::Display, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout, timeout_at};

use super::context::Context;
use crate::{model::pod::PodView, words::without_error_codes};

/// Limit of one read.
pub const READ_LIMIT: Duration = Duration::from_millis(2500);
/// Limit of the read of the object, before the others.
#[cfg(feature = "agent")]
const OBJECT_LIMIT: Duration = Duration::from_millis(1500);
/// Limit of all reads of one answer. The client waits a little longer.
const ANSWER_LIMIT: Duration = Duration::from_secs(4);

/// A fact, or why it could not be read.
pub type Fact<T> = Result<T, String>;

/// When the answer is given, with what was read until then.
#[derive(Debug, Clone, Copy)]
pub struct AnswerDeadline(Instant);

impl AnswerDeadline {
    /// The deadline of an answer that begins now.
    pub fn from_now() -> Self {
        Self(Instant::now() + ANSWER_LIMIT)
    }

    /// The fact, if it is read until then.
    pub async fn cap<T>(self, read: impl Future<Output = Fact<T>>) -> Fact<T> {
        timeout_at(self.0, read).await.map_err(late(ANSWER_LIMIT))?
    }
}

/// Why the API server did not show an object.
#[cfg(feature = "agent")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectUnread {
    /// It answered without the object.
    NotShown(String),
    /// It did not answer.
    NoAnswer(String),
}

#[cfg(feature = "agent")]
impl ObjectUnread {
    /// The error.
    pub fn why(&self) -> &str {
        let (Self::NotShown(why) | Self::NoAnswer(why)) = self;
        why
    }
}

/// The object as the API server shows it now. If it does not, the object as the watch last showed it, with the reason.
#[cfg(feature = "agent")]
pub async fn current_object(context: &Context, view: Arc<PodView>) -> (Arc<PodView>, Option<ObjectUnread>) {
    let unread = match timeout(OBJECT_LIMIT, context.api.pod(&view.pod)).await {
        Ok(Ok(Some(object))) => return (Arc::new(PodView::whole(object, true)), None),
        Ok(Ok(None)) => {
            ObjectUnread::NotShown("a list by its name does not show it: it may just have been deleted".to_owned())
        }
        Ok(Err(error)) if error.code.is_some() => ObjectUnread::NotShown(error.to_string()),
        Ok(Err(error)) => ObjectUnread::NoAnswer(error.to_string()),
        Err(elapsed) => ObjectUnread::NoAnswer(late(OBJECT_LIMIT)(elapsed)),
    };
    (view, Some(unread))
}

/// Runs a read on a thread. One that hangs keeps its thread, and its answer is dropped.
pub async fn blocking_in<T: Send + 'static>(
    limit: Duration,
    context: &Arc<Context>,
    view: &Arc<PodView>,
    read: impl FnOnce(&Context, &PodView) -> Fact<T> + Send + 'static,
) -> Fact<T> {
    let slots = context.pod_reads.slots(view.pod.uid.as_str());
    let (on_thread, view) = (Arc::clone(context), Arc::clone(view));
    let read = async {
        // The semaphore is never closed.
        let slot = Arc::clone(&slots).acquire_owned().await.map_err(text)?;
        let read = context.node.reads.run_blocking(move || {
            let fact = read(&on_thread, &view);
            drop(slot);
            fact
        });
        read.await.map_err(text)?
    };
    timeout(limit, read).await.unwrap_or_else(|_| {
        Err(match slots.available_permits() {
            0 => format!("no answer within {limit:?}: earlier reads of this pod still hang"),
            _ => format!("no answer within {limit:?}"),
        })
    })
}

pub fn late<E>(limit: Duration) -> impl Fn(E) -> String {
    move |_| format!("no answer within {limit:?}")
}

pub fn text(error: impl Display) -> String {
    without_error_codes(&error.to_string())
}
