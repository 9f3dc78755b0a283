//! Reports calls that are not answered in time, while it waits for them.

use std::time::Duration;

use tokio::time::timeout;

use crate::{
    model::{
        failure::{Failure, TIMEOUT},
        trace::{Obstacle, Step},
    },
    trace_recorder::TraceRecorder,
};

/// A call is reported when it takes so long, or so much longer than its own timeout.
pub const LATE: Duration = Duration::from_secs(10);

/// Waits for a call. After [`LATE`] without an answer, it is reported as a failure of the pod until the answer.
pub async fn report_if_late<T>(
    recorder: &TraceRecorder,
    (step, what): (Step, &str),
    call_name: &str,
    call: impl Future<Output = T>,
) -> T {
    tokio::pin!(call);
    if let Ok(answer) = timeout(LATE, &mut call).await {
        return answer;
    }
    let why = format!("{call_name}: no answer after {LATE:?}; the agent still waits");
    let failure = Failure::new(step, what, why).with_reason(TIMEOUT);
    tracing::warn!(step = %step, what, cause = failure.cause, "Call is late; the agent still waits");
    let failure = Obstacle::from(&failure);
    recorder.add_failure(failure.clone());
    let _report = LateReport { recorder, failure };
    call.await
}

/// A failure that is reported until this is dropped.
struct LateReport<'a> {
    recorder: &'a TraceRecorder,
    failure: Obstacle,
}

impl Drop for LateReport<'_> {
    fn drop(&mut self) {
        self.recorder
            .change(|trace| trace.blocked.retain(|other| *other != self.failure));
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::model::{pod::PodRef, termination::Cause};

    #[tokio::test(start_paused = true)]
    async fn late_call_is_a_failure_until_it_is_answered() {
        let pod = PodRef {
            uid: "u".into(),
            namespace: "ns".into(),
            name: "pod".into(),
        };
        let recorder = TraceRecorder::new(pod, Cause::Deleted, LATE, None);
        let call = report_if_late(&recorder, (Step::Sandbox, "s"), "StopPodSandbox", sleep(LATE * 3));
        tokio::join!(call, async {
            sleep(LATE / 2).await;
            assert!(recorder.trace().blocked.is_empty());
            sleep(LATE).await;
            let blocked = recorder.trace().blocked;
            assert_eq!(
                blocked[0].to_string(),
                "sandbox s: StopPodSandbox: no answer after 10s; the agent still waits"
            );
        });
        assert!(recorder.trace().blocked.is_empty());
    }
}
