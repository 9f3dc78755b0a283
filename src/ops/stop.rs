//! `stop`: sends the stop request to the agent, shows its progress and prints the result.

use std::{path::Path, time::Duration};

use tokio::time::timeout;

use super::{
    admin::stop::{OUTCOMES, PODS, StopOutcome, StopRequest},
    client::{self, ClientError},
};
use crate::{
    cli::PodId,
    model::trace::{Blocked, Stage, Trace},
    words::some_of,
    workers::stop::StopAccepted,
};

/// How long one query for the outcome waits; then progress is shown.
const WAIT: Duration = Duration::from_secs(1);

/// How long a command waits for the termination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// At most this time.
    AtMost(Duration),
    /// Without a limit.
    Unlimited,
}

/// The result of a stop request.
#[derive(Debug)]
pub enum StopResult {
    /// The request is accepted, and nothing more is waited for.
    Accepted(StopAccepted),
    /// The pod has terminated.
    Terminated(Box<Trace>),
    /// The pod had terminated before the request, which changed nothing.
    TerminatedBefore(Box<Trace>),
    /// The same, and it has no worker: nothing of it is on the node, or it is queued for its clean-up.
    WithoutWorker(StopAccepted),
}

/// Stops a pod, and waits until no container runs and the API server shows that. Passes each change of what blocks the pod to
/// `print`.
///
/// # Errors
/// When the agent refuses or cancels the request, or no longer answers, or the time to wait is over.
pub async fn stop(
    socket: &Path,
    pod: &PodId,
    request: &StopRequest,
    wait: Wait,
    mut print: impl FnMut(&str),
) -> Result<StopResult, ClientError> {
    let granted: StopAccepted = client::post(socket, &format!("{PODS}/{pod}/stop"), request).await?;
    if wait == Wait::No {
        return Ok(StopResult::Accepted(granted));
    }
    if !granted.already_terminated {
        print(&accepted(&granted));
    }
    let mut blocked = Vec::new();
    let outcome = follow(socket, &granted, &mut blocked, print);
    match wait {
        Wait::AtMost(limit) => match timeout(limit, outcome).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::StillTerminating {
                pod: granted.pod(),
                limit,
                blocked: some_of(blocked.iter().map(ToString::to_string)),
            }),
        },
        Wait::No | Wait::Unlimited => outcome.await,
    }
}

fn accepted(granted: &StopAccepted) -> String {
    let StopAccepted {
        uid,
        grace_period_seconds,
        not_durable,
        ..
    } = granted;
    let pod = granted.pod();
    let lost = not_durable.as_ref().map_or_else(String::new, |cause| {
        format!("; a restart of the agent would lose this request: {cause}")
    });
    format!("{pod} (UID {uid}) is terminating, grace period {grace_period_seconds}s{lost}")
}

/// Waits for the termination. `printed` is what blocks the pod.
async fn follow(
    socket: &Path,
    granted: &StopAccepted,
    printed: &mut Vec<Blocked>,
    mut print: impl FnMut(&str),
) -> Result<StopResult, ClientError> {
    let (uid, pod) = (&granted.uid, granted.pod());
    let mut is_unshown = granted.already_terminated && granted.phase.is_none();
    let path = format!("{OUTCOMES}/{uid}?wait={}", WAIT.as_secs());
    loop {
        let outcome = client::get_with_timeout(socket, &path, WAIT).await;
        let StopOutcome { terminated, trace } = match outcome {
            Err(ClientError::Unknown(_)) if granted.already_terminated => {
                return Ok(StopResult::WithoutWorker(granted.clone()));
            }
            outcome => outcome.map_err(|error| agent_exited(granted, error))?,
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
                "{pod} (UID {uid}) had terminated before: the request changes nothing; the API server does not show it yet"
            ));
        }
        if let Some(why) = trace.canceled_because {
            return Err(ClientError::Refused(format!("the request is canceled: {why}")));
        }
        if trace.blocked != *printed {
            trace
                .blocked
                .iter()
                .for_each(|failure| print(&format!("waits for {failure}")));
            *printed = trace.blocked;
        }
    }
}

/// An agent that does not know a request that was granted has restarted, or is stopping.
fn agent_exited(granted: &StopAccepted, error: ClientError) -> ClientError {
    let cause = match error {
        ClientError::NoAgent { cause, .. } => format!("no process listens on its socket: {cause}"),
        ClientError::Disconnected { cause, .. } | ClientError::Refused(cause) | ClientError::Unknown(cause) => cause,
        other => return other,
    };
    ClientError::AgentExited {
        pod: granted.pod(),
        cause,
        is_durable: granted.not_durable.is_none(),
    }
}

/// Formats the result.
pub fn text(result: &StopResult) -> String {
    let (was_terminated, trace) = match result {
        StopResult::Accepted(granted) if granted.already_terminated => {
            let pod = granted.pod();
            return format!("{pod} had terminated before: the request changes nothing");
        }
        StopResult::Accepted(granted) => return accepted(granted),
        StopResult::Terminated(trace) => (false, trace),
        StopResult::TerminatedBefore(trace) => (true, trace),
        StopResult::WithoutWorker(granted) => {
            let pod = granted.pod();
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
