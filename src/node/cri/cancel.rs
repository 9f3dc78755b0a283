//! Cancels calls only after the runtime has had time to start their work.

use std::time::Duration;

use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use crate::trace_context;

/// Time for a runtime to start the work of a call: tens of milliseconds on an idle node. A kubelet needs about a second
/// from its start to its first work on a pod, and is normally detected within a quarter of a second, so the call is
/// canceled before that.
///
/// If a call is canceled before its command starts, containerd's shim waits 30 s for readers and answers nothing else
/// about the pod. Grace periods would grow by that time.
const START_TIME: Duration = Duration::from_millis(500);

/// Sends a call and waits for its answer until `cancel` returns an error. The call is then canceled, but not before the
/// runtime has had time to start; an answer in that time still counts. The same holds if the caller is dropped. `None`
/// when the agent stops.
pub async fn cancel_after_start<T: Send + 'static, E>(
    call: impl Future<Output = T> + Send + 'static,
    cancel: impl Future<Output = E>,
) -> Result<Option<T>, E> {
    let (mut answer, answered) = oneshot::channel();
    let started = Instant::now() + START_TIME;
    let task = async move {
        let result = tokio::select! {
            biased;
            result = call => result,
            () = async { answer.closed().await; sleep_until(started).await } => return,
        };
        // The caller may be dropped.
        answer.send(result).ok();
    };
    // Another task does not inherit it.
    tokio::spawn(trace_context::scope(trace_context::current(), task));
    let cancel = async {
        let why = cancel.await;
        sleep_until(started).await;
        why
    };
    tokio::select! {
        biased;
        answer = answered => Ok(answer.ok()),
        why = cancel => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::pending};

    use tokio::time::{sleep, timeout};

    use super::*;

    /// A call that takes `millis`, with a caller that waits for `waited`. Returns the answer, and when the call finished
    /// unless it was canceled.
    async fn call(millis: u64, waited: u64) -> (Option<&'static str>, Option<u64>) {
        let (ended, end) = oneshot::channel();
        let begun = Instant::now();
        let call = async move {
            sleep(Duration::from_millis(millis)).await;
            ended.send(()).unwrap();
            "done"
        };
        let call = cancel_after_start(call, pending::<Infallible>());
        let waited = timeout(Duration::from_millis(waited), call).await;
        let answer = waited.ok().and_then(|Ok(answer)| answer);
        let ended = end.await.ok();
        let after = u64::try_from(begun.elapsed().as_millis()).unwrap();
        (answer, ended.map(|()| after))
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_caller_gets_the_answer() {
        assert_eq!(call(5_000, 60_000).await, (Some("done"), Some(5_000)));
    }

    #[tokio::test(start_paused = true)]
    async fn abandoned_call_is_not_canceled_before_it_may_have_started() {
        assert_eq!(call(400, 20).await, (None, Some(400)));
        assert_eq!(call(600, 20).await, (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn started_call_is_canceled_at_once() {
        let begun = Instant::now();
        assert_eq!(call(5_000, 2_000).await, (None, None));
        assert_eq!(begun.elapsed(), Duration::from_secs(2));
    }
}
