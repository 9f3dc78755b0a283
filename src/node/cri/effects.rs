//! Calls that change something. All of them pass the gate.

use std::time::Duration;

use futures::future::FutureExt as _;
use k8s_cri::v1;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};
use tonic::{Code, Response, Status};

use super::{
    client::{Client, Cri, REQUEST_DEADLINE, if_found},
    convert,
};
use crate::{
    model::blocked::Blocked,
    node::{
        checkpoint,
        grpc::{Call, CallFailure, GrpcError},
    },
    trace_context,
};

/// Additional time for a stop or a command before the runtime counts as unresponsive. After the stop or command itself,
/// the runtime still has to kill, reap and unmount.
const EXTRA_TIME: Duration = REQUEST_DEADLINE;

/// Time for a runtime to start the work of a call: tens of milliseconds on an idle node. A kubelet needs about a second
/// from its start to its first work on a pod, and is normally detected within a quarter of a second, so the call is
/// canceled before that.
///
/// If a call is canceled before its command starts, containerd's shim waits 30 s for readers and answers nothing else
/// about the pod. Grace periods would grow by that time.
const START_TIME: Duration = Duration::from_millis(500);

// === impl Cri ===

impl Cri {
    /// Runs a command in a container, waits for its exit and returns the exit code. The runtime kills it after `timeout`, which is
    /// rounded up to whole seconds, at least one: zero means "no limit".
    ///
    /// # Errors
    /// When the call fails or is blocked, or the command exceeded its timeout: [`CallFailure::Timeout`]. An exit code other
    /// than zero is no error.
    pub async fn exec_sync(
        &self,
        container_id: &str,
        command: impl Into<Vec<String>>,
        timeout: Duration,
    ) -> Result<i32, GrpcError> {
        const NAME: &str = "ExecSync";
        let seconds = whole_seconds(timeout).max(1);
        self.admit(NAME, container_id)?;
        let request = v1::ExecSyncRequest {
            container_id: container_id.to_owned(),
            cmd: command.into(),
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let deadline = Duration::from_secs(seconds).saturating_add(EXTRA_TIME);
        let (cri, id) = (self.clone(), container_id.to_owned());
        let call = async move {
            let send = async |mut client: Client| client.exec_sync(request).await;
            cri.change(NAME, &id, deadline, send).await
        };
        let failed = |failure| Err(Call::to_runtime(NAME, container_id).failed(failure));
        let expired = CallFailure::Timeout(Duration::from_secs(seconds));
        // A command that exits before its call is canceled counts, even if a kubelet has started.
        match cancel_after_start(call, self.effects.wait_until_blocked()).await {
            Ok(Some(Ok(answer))) if convert::has_timed_out(&answer) => failed(expired),
            Ok(Some(Ok(answer))) => Ok(answer.exit_code),
            // containerd's answer if the command exceeded its timeout.
            Ok(Some(Err(error))) => match error.failure {
                CallFailure::Failed {
                    code: Code::DeadlineExceeded,
                    ..
                } => failed(expired),
                _ => Err(error),
            },
            Ok(None) => failed(CallFailure::Unreachable("runtime", "the agent is stopping".to_owned())),
            Err(blocked) => failed(CallFailure::Blocked(blocked)),
        }
    }

    /// Sends a container its stop signal, and SIGKILL after `timeout` (rounded up to whole seconds). Returns when the
    /// container has exited. A container that does not exist counts as stopped.
    ///
    /// # Errors
    /// When the call fails, is blocked, or is not answered.
    pub async fn stop_container(&self, id: &str, timeout: Duration) -> Result<(), GrpcError> {
        let seconds = whole_seconds(timeout);
        let request = v1::StopContainerRequest {
            container_id: id.to_owned(),
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let deadline = Duration::from_secs(seconds).saturating_add(EXTRA_TIME);
        let send = async |mut client: Client| client.stop_container(request).await;
        self.run_until_blocked("StopContainer", id, deadline, send).await
    }

    /// Kills what still runs in a sandbox and tears down its network. A sandbox that does not exist counts as stopped.
    ///
    /// # Errors
    /// When the call fails, is blocked, or is not answered.
    pub async fn stop_sandbox(&self, id: &str) -> Result<(), GrpcError> {
        let pod_sandbox_id = id.to_owned();
        let request = v1::StopPodSandboxRequest { pod_sandbox_id };
        let send = async |mut client: Client| client.stop_pod_sandbox(request).await;
        self.run_until_blocked("StopPodSandbox", id, REQUEST_DEADLINE, send)
            .await
    }

    /// Removes a container. One that does not exist counts as removed.
    ///
    /// # Errors
    /// When the call fails, is blocked, or is not answered.
    pub async fn remove_container(&self, id: &str) -> Result<(), GrpcError> {
        let container_id = id.to_owned();
        let request = v1::RemoveContainerRequest { container_id };
        let send = async |mut client: Client| client.remove_container(request).await;
        self.run_until_blocked("RemoveContainer", id, REQUEST_DEADLINE, send)
            .await
    }

    /// Removes a sandbox and its remaining containers. One that does not exist counts as removed.
    ///
    /// # Errors
    /// When the call fails, is blocked, or is not answered.
    pub async fn remove_sandbox(&self, id: &str) -> Result<(), GrpcError> {
        let pod_sandbox_id = id.to_owned();
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id };
        let send = async |mut client: Client| client.remove_pod_sandbox(request).await;
        self.run_until_blocked("RemovePodSandbox", id, REQUEST_DEADLINE, send)
            .await
    }

    /// Asks the gate, sends a call, and cancels it when the gate shuts. What does not exist needs no change.
    async fn run_until_blocked<T, F>(
        &self,
        name: &'static str,
        id: &str,
        deadline: Duration,
        send: impl FnOnce(Client) -> F,
    ) -> Result<(), GrpcError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.admit(name, id)?;
        let call = self.change(name, id, deadline, send);
        let outcome = self.effects.run_until_blocked(call).await;
        let answer = outcome.map_err(|blocked| blocked_error(name, id, blocked)).flatten();
        if_found(answer).map(drop)
    }

    /// Sends a call that was admitted.
    fn change<T, F>(
        &self,
        name: &'static str,
        id: &str,
        deadline: Duration,
        send: impl FnOnce(Client) -> F,
    ) -> impl Future<Output = Result<T, GrpcError>>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.call(name, id, deadline, send)
            .inspect(move |_| checkpoint::after(name, &id))
    }

    /// Asks the gate. Every call that changes something starts here.
    fn admit(&self, name: &'static str, id: &str) -> Result<(), GrpcError> {
        let allowed = self.effects.allow(name, &id);
        allowed.map_err(|blocked| blocked_error(name, id, blocked))
    }
}

/// The error of a call that the gate blocks or interrupts.
fn blocked_error(name: &'static str, id: &str, blocked: Blocked) -> GrpcError {
    Call::to_runtime(name, id).failed(CallFailure::Blocked(blocked))
}

fn whole_seconds(duration: Duration) -> u64 {
    let more = u64::from(duration.subsec_nanos() > 0);
    duration.as_secs().saturating_add(more)
}

/// Sends a call and waits for its answer until `cancel` returns an error. The call is then canceled, but not before the
/// runtime has had time to start; an answer in that time still counts. The same holds if the caller is dropped. `None`
/// when the agent stops.
async fn cancel_after_start<T: Send + 'static, E>(
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
