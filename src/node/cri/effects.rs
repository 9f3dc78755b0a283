//! Calls that change something. All of them pass the gate.

use std::time::Duration;

use futures::future::FutureExt as _;
use k8s_cri::v1;
use tonic::{Code, Response, Status};

use super::cancel::cancel_after_start;
use super::client::{Client, Cri, REQUEST_DEADLINE, if_found};
use super::convert;
use super::types::ExecOutcome;
use crate::{
    model::blocked::Blocked,
    node::{
        checkpoint,
        grpc::{Call, GrpcError},
    },
};

/// Additional time for a stop or a command before the runtime counts as unresponsive. After the stop or command itself,
/// the runtime still has to kill, reap and unmount.
const EXTRA_TIME: Duration = REQUEST_DEADLINE;

// === impl Cri ===

impl Cri {
    /// Runs a command in a container and waits for its exit. The runtime kills it after `timeout`, which is rounded up to
    /// whole seconds, at least one: zero means "no limit".
    ///
    /// # Errors
    /// When the call fails or is blocked, or the command exceeded its timeout: [`GrpcError::Timeout`]. An exit code other
    /// than zero is no error.
    pub async fn exec_sync(
        &self,
        container_id: &str,
        command: impl Into<Vec<String>>,
        timeout: Duration,
    ) -> Result<ExecOutcome, GrpcError> {
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
        let ended = || GrpcError::Unreachable {
            call: Call::to_runtime(NAME, container_id),
            cause: "the agent is stopping".to_owned(),
        };
        // A command that exits before its call is canceled counts, even if a kubelet has started.
        let answer = cancel_after_start(call, self.effects.wait_until_blocked()).await;
        let answer = answer.map_err(|blocked| blocked_error(NAME, container_id, blocked));
        match answer.and_then(|answer| answer.ok_or_else(ended).flatten()) {
            Ok(answer) if convert::has_timed_out(&answer) => Err(GrpcError::Timeout {
                call: Call::to_runtime(NAME, container_id),
                after: Duration::from_secs(seconds),
            }),
            Ok(answer) => Ok(convert::exec_outcome(&answer)),
            // containerd's answer if the command exceeded its timeout.
            Err(GrpcError::Failed {
                call,
                code: Code::DeadlineExceeded,
                ..
            }) => Err(GrpcError::Timeout {
                call,
                after: Duration::from_secs(seconds),
            }),
            Err(error) => Err(error),
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
        self.effects
            .allow(name, &id)
            .map_err(|blocked| blocked_error(name, id, blocked))
    }
}

/// The error of a call that the gate blocks or interrupts.
fn blocked_error(name: &'static str, id: &str, blocked: Blocked) -> GrpcError {
    let call = Call::to_runtime(name, id);
    GrpcError::Blocked { call, blocked }
}

fn whole_seconds(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
}
