//! `stop`: sends the stop request to the agent, shows its progress and prints the result.

use std::{path::Path, time::Duration};

use tokio::time::timeout;

use super::{
    admin::stop::{OUTCOMES, PODS, StopOutcome},
    client::{self, ClientError},
    output::loss,
};
use crate::{
    cli::StopRequest,
    model::trace::{Obstacle, Stage, Trace},
    words::some_of,
    workers::stop::StopAccepted,
};

/// How long one query for the outcome waits; then progress is shown.
const WAIT: Duration = Duration::from_secs(1);

/// Stops a pod, which is `NAMESPACE/NAME` or a UID. `wait`: how long to wait until no container runs and the API server shows that;
/// `None` for not at all. Passes each change of what blocks the pod to `print`, and returns the text of the result.
///
/// # Errors
/// When the agent refuses or cancels the request, or no longer answers, or the time to wait is over.
pub async fn stop(
    socket: &Path,
    pod: &str,
    request: &StopRequest,
    wait: Option<Duration>,
    mut print: impl FnMut(&str),
) -> Result<String, ClientError> {
    let granted: StopAccepted = client::post(socket, &format!("{PODS}/{pod}/stop"), request).await?;
    let Some(limit) = wait else {
        return Ok(match granted.already_terminated {
            true => format!("{} had terminated before: the request changes nothing", granted.pod()),
            false => accepted(&granted),
        });
    };
    if !granted.already_terminated {
        print(&accepted(&granted));
    }
    let mut blocked = Vec::new();
    let ended = timeout(limit, follow(socket, &granted, &mut blocked, print)).await;
    ended.unwrap_or_else(|_| Err(still_terminating(&granted.pod(), limit, &blocked)))
}

fn accepted(granted: &StopAccepted) -> String {
    let (pod, uid, grace) = (granted.pod(), &granted.uid, granted.grace_period_seconds);
    let lost = loss("this request", granted.not_durable.as_ref());
    format!("{pod} (UID {uid}) is terminating, grace period {grace}s{lost}")
}

/// Waits for the termination. `printed` is what blocks the pod.
async fn follow(
    socket: &Path,
    granted: &StopAccepted,
    printed: &mut Vec<Obstacle>,
    mut print: impl FnMut(&str),
) -> Result<String, ClientError> {
    let (uid, pod) = (&granted.uid, granted.pod());
    let mut is_unshown = granted.already_terminated && granted.phase.is_none();
    let path = format!("{OUTCOMES}{uid}?wait={}", WAIT.as_secs());
    loop {
        let outcome = client::get_raw(socket, &path, WAIT).await;
        let StopOutcome { terminated, trace } = match outcome.and_then(|answer| answer.parse()) {
            Err(ClientError::Unknown(_)) if granted.already_terminated => {
                return Ok(format!(
                    "{pod} had terminated before: the request changes nothing; nothing of it runs on this node"
                ));
            }
            outcome => outcome.map_err(|error| agent_exited(granted, error))?,
        };
        if terminated {
            return Ok(terminated_text(&trace, granted.already_terminated));
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
    let pod = granted.pod();
    let then = match granted.not_durable {
        None => "the termination continues when the agent starts again: ",
        Some(_) => {
            "the request was not durable: repeat it unless the termination continues when the agent starts again; "
        }
    };
    ClientError::Failed(format!(
        "the agent has exited while {pod} was terminating: {cause}; {then}see pod-teardown status and pod-teardown timeline {pod} then"
    ))
}

fn still_terminating(pod: &str, limit: Duration, blocked: &[Obstacle]) -> ClientError {
    let limit = humantime::format_duration(limit);
    let waits = match blocked {
        [] => String::new(),
        blocked => format!(": it waits for {}", some_of(blocked.iter().map(ToString::to_string))),
    };
    ClientError::Failed(format!(
        "{pod} has not terminated within {limit}{waits}; the stop continues: see pod-teardown why {pod}"
    ))
}

fn terminated_text(trace: &Trace, was_terminated: bool) -> String {
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
