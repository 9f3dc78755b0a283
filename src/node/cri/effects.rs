//! Calls that change something. All of them pass the gate.

use std::time::Duration;

use futures::future::FutureExt as _;
use k8s_cri::v1;
use tonic::{Code, Response, Status};

use super::cancel::cancel_after_start;
use super::client::{Cri, REQUEST_DEADLINE};
use super::convert;
use super::types::ExecOutcome;
use crate::node::{
    checkpoint,
    effects::{Effect, EffectsBlocked},
    grpc::{Call, GrpcError},
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
        let (cri, mut client, id) = (self.clone(), self.client(), container_id.to_owned());
        let call = async move { cri.change(NAME, &id, deadline, client.exec_sync(request)).await };
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
        const NAME: &str = "StopContainer";
        let seconds = whole_seconds(timeout);
        self.admit(NAME, id)?;
        let timeout = i64::try_from(seconds).unwrap_or(i64::MAX);
        let request = v1::StopContainerRequest {
            container_id: id.to_owned(),
            timeout,
        };
        let deadline = Duration::from_secs(seconds).saturating_add(EXTRA_TIME);
        let mut client = self.client();
        let call = self.change(NAME, id, deadline, client.stop_container(request));
        not_found_is_ok(self.run_until_blocked(NAME, id, call).await)
    }

    /// Kills what still runs in a sandbox and tears down its network. A sandbox that does not exist counts as stopped.
    ///
    /// # Errors
    /// When the call fails, is blocked, or is not answered.
    pub async fn stop_sandbox(&self, id: &str) -> Result<(), GrpcError> {
        const NAME: &str = "StopPodSandbox";
        self.admit(NAME, id)?;
        let request = v1::StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let mut client = self.client();
        let call = self.change(NAME, id, REQUEST_DEADLINE, client.stop_pod_sandbox(request));
        not_found_is_ok(self.run_until_blocked(NAME, id, call).await)
    }

    /// Removes a container. One that does not exist counts as removed.
    ///
    /// # Errors
    /// When the call fails, is blocked, or is not answered.
    pub async fn remove_container(&self, id: &str) -> Result<(), GrpcError> {
        const NAME: &str = "RemoveContainer";
        self.admit(NAME, id)?;
        let request = v1::RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        let mut client = self.client();
        let call = self.change(NAME, id, REQUEST_DEADLINE, client.remove_container(request));
        not_found_is_ok(self.run_until_blocked(NAME, id, call).await)
    }

    /// Removes a sandbox and its remaining containers. One that does not exist counts as removed.
    ///
    /// # Errors
    /// When the call fails, is blocked, or is not answered.
    pub async fn remove_sandbox(&self, id: &str) -> Result<(), GrpcError> {
        const NAME: &str = "RemovePodSandbox";
        self.admit(NAME, id)?;
        let request = v1::RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let mut client = self.client();
        let call = self.change(NAME, id, REQUEST_DEADLINE, client.remove_pod_sandbox(request));
        not_found_is_ok(self.run_until_blocked(NAME, id, call).await)
    }

    /// Waits for an admitted call, and cancels it when the gate shuts.
    async fn run_until_blocked<T>(
        &self,
        name: &'static str,
        id: &str,
        call: impl Future<Output = Result<T, GrpcError>>,
    ) -> Result<T, GrpcError> {
        let outcome = self.effects.run_until_blocked(call).await;
        outcome.map_err(|blocked| blocked_error(name, id, blocked)).flatten()
    }

    /// Sends a call that was admitted.
    fn change<T>(
        &self,
        name: &'static str,
        id: &str,
        deadline: Duration,
        rpc: impl Future<Output = Result<Response<T>, Status>>,
    ) -> impl Future<Output = Result<T, GrpcError>> {
        self.call(name, id, deadline, rpc)
            .inspect(move |_| checkpoint::after(name, &id))
    }

    /// Asks the gate. Every call that changes something starts here.
    fn admit(&self, name: &'static str, id: &str) -> Result<(), GrpcError> {
        self.effects
            .allow(&Effect::new(name, &id))
            .map_err(|blocked| blocked_error(name, id, blocked))
    }
}

/// The error of a call that the gate blocks or interrupts.
fn blocked_error(name: &'static str, id: &str, blocked: EffectsBlocked) -> GrpcError {
    let call = Call::to_runtime(name, id);
    GrpcError::Blocked { call, blocked }
}

fn not_found_is_ok<T>(result: Result<T, GrpcError>) -> Result<(), GrpcError> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

fn whole_seconds(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(whole_seconds(Duration::ZERO), 0);
        assert_eq!(whole_seconds(Duration::from_nanos(1)), 1);
        assert_eq!(whole_seconds(Duration::from_secs(30)), 30);
        assert_eq!(whole_seconds(Duration::from_millis(29_001)), 30);
        assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
    }
}
