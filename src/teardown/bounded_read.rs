//! Reads for a diagnosis or a plan, each with a limit of time.

use std::{
    collections::HashMap,
    fmt::Display,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, timeout, timeout_at},
};

use super::context::Context;
use crate::model::pod::PodView;

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

/// The object as the API server has it now, else as the watch last showed it, with the reason.
#[cfg(feature = "agent")]
pub async fn current_object(context: &Context, view: Arc<PodView>) -> (Arc<PodView>, Option<String>) {
    let read = timeout(OBJECT_LIMIT, context.api.pod(&view.pod)).await;
    match read.map_err(late(OBJECT_LIMIT)).and_then(|read| read.map_err(text)) {
        Ok(Some(object)) => (Arc::new(PodView::whole(object, true)), None),
        Ok(None) => (
            view,
            Some("a list by its name does not show it: it may just have been deleted".to_owned()),
        ),
        Err(why) => (view, Some(why)),
    }
}

/// Number of threads that the reads of one pod take at most. So a file system that hangs does not blind the answers about other
/// pods.
const MAX_READS_OF_POD: usize = 8;

/// Slots for reads, by UID of the pod.
#[derive(Debug, Default)]
pub struct PodReads(Mutex<HashMap<String, Weak<Semaphore>>>);

impl PodReads {
    fn slots(&self, uid: &str) -> Arc<Semaphore> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, slots| slots.strong_count() > 0);
        if let Some(slots) = all.get(uid).and_then(Weak::upgrade) {
            return slots;
        }
        let slots = Arc::new(Semaphore::new(MAX_READS_OF_POD));
        all.insert(uid.to_owned(), Arc::downgrade(&slots));
        slots
    }
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
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hung_reads_of_one_pod_leave_slots_for_others_and_for_itself_later() {
        let reads = PodReads::default();
        let hung: Vec<_> = (0..MAX_READS_OF_POD)
            .map(|_| reads.slots("u1").try_acquire_owned().unwrap())
            .collect();
        assert!(reads.slots("u1").try_acquire_owned().is_err());
        assert!(reads.slots("u2").try_acquire_owned().is_ok());
        drop(hung);
        assert!(reads.slots("u1").try_acquire_owned().is_ok());
    }
}
