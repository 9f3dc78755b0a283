//! The calls that change something, all of them through the gate.

use std::time::Duration;

use k8s_cri::v1;
use tonic::{Code, Response, Status};

use super::cancel::cancel_after_start;
use super::client::{Cri, REQUEST_DEADLINE, within};
use super::convert;
use super::types::ExecOutcome;
use crate::node::{
    checkpoint,
    effects::{Effect, EffectsBlocked},
    grpc::{Call, GrpcError},
};

/// What a stop or a command may take beyond its own time before the runtime counts as not answering: at the end of that
/// time it still has to kill, reap and unmount, which is as much work as any other call.
const MARGIN: Duration = REQUEST_DEADLINE;

// === impl Cri ===

impl Cri {
    /// Runs a command in a container and waits for its end; the runtime kills it after `timeout`. That timeout is sent
    /// in whole seconds, rounded up and at least one, because zero means "no limit" to a runtime.
    ///
    /// # Errors
    /// When the call fails, is held back, or the command overran: [`GrpcError::Timeout`]. An exit code other than zero
    /// is no error.
    pub async fn exec_sync(
        &self,
        container_id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<ExecOutcome, GrpcError> {
        const NAME: &str = "ExecSync";
        let seconds = whole_seconds(timeout).max(1);
        if !self.admit(NAME, container_id)? {
            return Ok(ExecOutcome::default());
        }
        let request = v1::ExecSyncRequest {
            container_id: container_id.to_owned(),
            cmd: command.to_vec(),
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let deadline = Duration::from_secs(seconds).saturating_add(MARGIN);
        let (mut client, id) = (self.client(), container_id.to_owned());
        let call = async move { change(NAME, &id, deadline, client.exec_sync(request)).await };
        let ended = || GrpcError::Unreachable {
            call: Call::to_runtime(NAME, container_id),
            cause: "the agent ends".to_owned(),
        };
        // A command that ends before its call is canceled has ended: what is known of it counts, though a kubelet has come.
        let answer = cancel_after_start(call, self.effects.wait_until_blocked()).await;
        let answer = answer.map_err(|held| blocked(NAME, container_id, held));
        match answer.and_then(|answer| answer.ok_or_else(ended).flatten()) {
            Ok(answer) if convert::has_overrun(&answer) => Err(GrpcError::Timeout {
                call: Call::to_runtime(NAME, container_id),
                after: Duration::from_secs(seconds),
            }),
            Ok(answer) => Ok(convert::exec_outcome(&answer)),
            // The runtime's own word for "the command did not end in time".
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

    /// Sends a container its stop signal, and SIGKILL when it has not ended after `timeout`, in whole seconds, rounded
    /// up; returns when it has ended. One that is not there has been stopped.
    ///
    /// # Errors
    /// When the call fails, is held back, or is not answered.
    pub async fn stop_container(&self, id: &str, timeout: Duration) -> Result<(), GrpcError> {
        const NAME: &str = "StopContainer";
        let seconds = whole_seconds(timeout);
        if !self.admit(NAME, id)? {
            return Ok(());
        }
        let timeout = i64::try_from(seconds).unwrap_or(i64::MAX);
        let request = v1::StopContainerRequest {
            container_id: id.to_owned(),
            timeout,
        };
        let deadline = Duration::from_secs(seconds).saturating_add(MARGIN);
        let mut client = self.client();
        let call = change(NAME, id, deadline, client.stop_container(request));
        gone_is_done(self.run_until_blocked(NAME, id, call).await)
    }

    /// Kills what is left in a sandbox and takes down its network. One that is not there has been stopped.
    ///
    /// # Errors
    /// When the call fails, is held back, or is not answered.
    pub async fn stop_sandbox(&self, id: &str) -> Result<(), GrpcError> {
        const NAME: &str = "StopPodSandbox";
        if !self.admit(NAME, id)? {
            return Ok(());
        }
        let request = v1::StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let mut client = self.client();
        let call = change(NAME, id, REQUEST_DEADLINE, client.stop_pod_sandbox(request));
        gone_is_done(self.run_until_blocked(NAME, id, call).await)
    }

    /// Removes a container from the runtime. One that is not there has been removed.
    ///
    /// # Errors
    /// When the call fails, is held back, or is not answered.
    pub async fn remove_container(&self, id: &str) -> Result<(), GrpcError> {
        const NAME: &str = "RemoveContainer";
        if !self.admit(NAME, id)? {
            return Ok(());
        }
        let request = v1::RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        let mut client = self.client();
        let call = change(NAME, id, REQUEST_DEADLINE, client.remove_container(request));
        gone_is_done(self.run_until_blocked(NAME, id, call).await)
    }

    /// Removes a sandbox from the runtime, with the containers that it still has. One that is not there has been
    /// removed.
    ///
    /// # Errors
    /// When the call fails, is held back, or is not answered.
    pub async fn remove_sandbox(&self, id: &str) -> Result<(), GrpcError> {
        const NAME: &str = "RemovePodSandbox";
        if !self.admit(NAME, id)? {
            return Ok(());
        }
        let request = v1::RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let mut client = self.client();
        let call = change(NAME, id, REQUEST_DEADLINE, client.remove_pod_sandbox(request));
        gone_is_done(self.run_until_blocked(NAME, id, call).await)
    }

    /// Waits for a call that was admitted, and lets go of it when somebody else is about to do the same.
    async fn run_until_blocked<T>(
        &self,
        name: &'static str,
        id: &str,
        call: impl Future<Output = Result<T, GrpcError>>,
    ) -> Result<T, GrpcError> {
        let outcome = self.effects.run_until_blocked(call).await;
        outcome.map_err(|held| blocked(name, id, held)).flatten()
    }

    /// The one way to an effect.
    fn admit(&self, name: &'static str, id: &str) -> Result<bool, GrpcError> {
        self.effects
            .allow(&Effect::new(name, &id))
            .map_err(|held| blocked(name, id, held))
    }
}

/// A call that the gate does not allow, or not any more.
fn blocked(name: &'static str, id: &str, held: EffectsBlocked) -> GrpcError {
    let call = Call::to_runtime(name, id);
    GrpcError::Blocked { call, held }
}

/// A call that was admitted.
async fn change<T>(
    name: &'static str,
    id: &str,
    deadline: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, GrpcError> {
    let answer = within(name, id, deadline, call).await;
    checkpoint::after(name, &id);
    answer
}

fn gone_is_done<T>(result: Result<T, GrpcError>) -> Result<(), GrpcError> {
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
    fn a_part_of_a_second_counts_as_a_whole_one() {
        assert_eq!(whole_seconds(Duration::ZERO), 0);
        assert_eq!(whole_seconds(Duration::from_nanos(1)), 1);
        assert_eq!(whole_seconds(Duration::from_secs(30)), 30);
        assert_eq!(whole_seconds(Duration::from_millis(29_001)), 30);
        assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
    }
}
