//! `stop` and `evict`: sends the stop request to the agent, shows its progress and prints the result.

use std::{path::Path, time::Duration};

use super::{
    admin::stop::{OUTCOMES, PODS, StopOutcome, StopRequest},
    client::{self, ClientError},
};
use crate::{
    cli::PodName,
    model::trace::{Stage, Trace},
    workers::stop::StopAccepted,
};

/// How long one query for the outcome waits; then progress is shown.
const WAIT: Duration = Duration::from_secs(1);

/// The result of a stop request.
#[derive(Debug)]
pub enum StopResult {
    /// The pod has terminated.
    Terminated(Box<Trace>),
    /// The pod had terminated before the request, which changed nothing.
    TerminatedBefore(Box<Trace>),
    /// The same, and it has no worker: nothing of it is on the node, or it is queued for its clean-up.
    WithoutWorker(PodName),
}

/// Stops a pod and passes each change of what blocks it to `print`. Returns when no container runs and the API server shows
/// that.
///
/// # Errors
/// When the agent refuses or cancels the request, or no longer answers.
pub async fn follow(
    socket: &Path,
    pod: &PodName,
    verb: &str,
    request: &StopRequest,
    mut print: impl FnMut(&str),
) -> Result<StopResult, ClientError> {
    let granted: StopAccepted = client::post(socket, &format!("{PODS}/{pod}/{verb}"), request).await?;
    let uid = &granted.uid;
    if !granted.already_terminated {
        print(&format!(
            "{pod} (UID {uid}) is terminating, grace period {} s",
            granted.grace_period_seconds
        ));
    }
    let mut is_unshown = granted.already_terminated && granted.phase.is_none();
    let path = format!("{OUTCOMES}/{uid}?wait={}", WAIT.as_secs());
    let mut printed = Vec::new();
    loop {
        let outcome = client::get_with_timeout(socket, &path, WAIT).await;
        let StopOutcome { terminated, trace } = match outcome {
            Err(ClientError::Unknown(_)) if granted.already_terminated => {
                return Ok(StopResult::WithoutWorker(pod.clone()));
            }
            outcome => outcome.map_err(|error| agent_exited(pod, error))?,
        };
        if terminated {
            let trace = Box::new(trace);
            return Ok(match granted.already_terminated {
                true => StopResult::TerminatedBefore(trace),
                false => StopResult::Terminated(trace),
            });
        }
        if std::mem::take(&mut is_unshown) {
            print(&format!(
                "{pod} (UID {uid}) runs no more: the request changes nothing; the API server does not show that yet"
            ));
        }
        if let Some(why) = trace.cancelled_because {
            return Err(ClientError::Refused(format!("the request is cancelled: {why}")));
        }
        if trace.blocked != printed {
            trace
                .blocked
                .iter()
                .for_each(|failure| print(&format!("waits for {failure}")));
            printed = trace.blocked;
        }
    }
}

/// An agent that does not know a request that was granted has restarted, or is stopping.
fn agent_exited(pod: &PodName, error: ClientError) -> ClientError {
    let cause = match error {
        ClientError::NoAgent { cause, .. } => format!("no process listens on its socket: {cause}"),
        ClientError::Disconnected { cause, .. } | ClientError::Refused(cause) | ClientError::Unknown(cause) => cause,
        other => return other,
    };
    let pod = pod.to_string();
    ClientError::AgentExited { pod, cause }
}

/// Formats the result.
pub fn text(result: &StopResult) -> String {
    let (was_terminated, trace) = match result {
        StopResult::Terminated(trace) => (false, trace),
        StopResult::TerminatedBefore(trace) => (true, trace),
        StopResult::WithoutWorker(pod) => {
            return format!(
                "{pod} had terminated before: the request changes nothing; nothing of it runs on this node"
            );
        }
    };
    let then = match trace.stage {
        _ if trace.waits_for_deletion => "its object, containers and logs are kept until it is deleted",
        Stage::Terminating | Stage::Terminated => "its volumes and cgroup are being cleaned up",
        Stage::Deleted => "its object is deleted, and its leftovers in the runtime are being removed",
        Stage::Finished => "nothing of it is left on this node",
    };
    let (namespace, name, shown) = (&trace.namespace, &trace.name, trace.phase_suffix());
    if was_terminated {
        format!("{namespace}/{name} had terminated before{shown}: the request changes nothing; {then}")
    } else {
        format!("{namespace}/{name} has terminated{shown}: none of its containers runs; {then}")
    }
}
