//! Calls that are not given up while the runtime still begins what they ask for.

use std::time::Duration;

use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

/// How long a runtime may take to begin: tens of milliseconds on a quiet node. A kubelet that has just appeared, and is seen
/// within a quarter of a second, takes about one from its start to its first work on a pod: by then the call is given up.
///
/// A shim of containerd whose caller is gone before a command was begun waits 30 s for readers that do not come, and
/// answers nothing else about its pod meanwhile: grace periods grow by them.
const BEGINS: Duration = Duration::from_millis(500);

/// Makes the call, and waits for its answer until `cancel` ends, whose value is the error then. A call that is not waited for
/// any more is canceled, but not before the runtime has had time to begin; an answer in that time counts, unless the caller
/// is gone. `None` when the agent stops.
pub async fn cancel_after_start<T: Send + 'static, E>(
    call: impl Future<Output = T> + Send + 'static,
    cancel: impl Future<Output = E>,
) -> Result<Option<T>, E> {
    let (mut answer, answered) = oneshot::channel();
    let begins = Instant::now() + BEGINS;
    tokio::spawn(async move {
        let told = tokio::select! {
            biased;
            told = call => told,
            () = async { answer.closed().await; sleep_until(begins).await } => return,
        };
        // Who does not wait any more need not know.
        answer.send(told).ok();
    });
    let cancel = async {
        let why = cancel.await;
        sleep_until(begins).await;
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

    /// A call that takes `millis` and is waited for no longer than `waited`: what it answers, and when it ended, unless it
    /// was given up.
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
    async fn who_waits_gets_the_answer() {
        assert_eq!(call(5_000, 60_000).await, (Some("done"), Some(5_000)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_nobody_waits_for_comes_to_its_end_while_it_may_still_begin() {
        assert_eq!(call(400, 20).await, (None, Some(400)));
        assert_eq!(call(600, 20).await, (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_has_begun_is_given_up_at_once() {
        let begun = Instant::now();
        assert_eq!(call(5_000, 2_000).await, (None, None));
        assert_eq!(begun.elapsed(), Duration::from_secs(2));
    }
}
