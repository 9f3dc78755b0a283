//! `kill` and `evict`: asks the agent for a pod's end, follows it, and says what came of it.

use std::{path::Path, time::Duration};

use super::{
    admin::stop::{OUTCOMES, PODS, StopOutcome, StopRequest},
    client::{self, ClientError},
};
use crate::{
    cli::PodName,
    model::trace::{Stage, Trace},
    workers::kill::Granted,
};

/// How long one question for the outcome may wait; then what was said meanwhile is told.
const WAIT: Duration = Duration::from_secs(1);

/// What came of a request.
#[derive(Debug)]
pub struct StopResult {
    /// The pod had ended before, and nothing was changed.
    pub already: bool,
    /// How the pod ended.
    pub story: Trace,
}

/// Ends a pod, and tells `say` how it goes, a line each time that something is new. Returns when nothing of it runs and the
/// API server shows it.
pub async fn follow(
    socket: &Path,
    pod: &PodName,
    verb: &str,
    ask: &StopRequest,
    mut say: impl FnMut(&str),
) -> Result<StopResult, ClientError> {
    let granted: Granted = client::post(socket, &format!("{PODS}/{pod}/{verb}"), ask).await?;
    let uid = &granted.uid;
    match (granted.ended_already, &granted.phase) {
        (false, _) => say(&format!(
            "{pod} (UID {uid}) is being ended, grace {} s",
            granted.grace_seconds
        )),
        (true, None) => say(&format!(
            "{pod} (UID {uid}) runs no more, so that nothing changes; the API server does not show its end yet"
        )),
        (true, Some(_)) => {}
    }
    let path = format!("{OUTCOMES}/{uid}?wait={}", WAIT.as_secs());
    let mut told = Vec::new();
    loop {
        let outcome = client::get_with_timeout(socket, &path, WAIT).await;
        let StopOutcome { ended, story } = outcome.map_err(|error| gone(pod, error))?;
        if ended {
            return Ok(StopResult {
                already: granted.ended_already,
                story,
            });
        }
        if let Some(why) = story.given_up {
            return Err(ClientError::Refused(format!("the request is given up: {why}")));
        }
        if story.blocked != told {
            story
                .blocked
                .iter()
                .for_each(|failure| say(&format!("waits for {failure}")));
            told = story.blocked;
        }
    }
}

/// The end was granted: whatever the reason, an agent that does not know of it is not the one that was asked, or stops.
fn gone(pod: &PodName, error: ClientError) -> ClientError {
    let cause = match error {
        ClientError::NoAgent { cause, .. } => format!("nobody listens at its socket: {cause}"),
        ClientError::Disconnected { cause, .. } | ClientError::Refused(cause) => cause,
        other => return other,
    };
    let pod = pod.to_string();
    ClientError::AgentExited { pod, cause }
}

/// What came of it, for people.
pub fn text(StopResult { already, story }: &StopResult) -> String {
    let then = match story.stage {
        _ if story.kept => "its object, containers and logs are kept until it is deleted",
        Stage::Terminating | Stage::Terminated => "its volumes and cgroup are being cleaned up",
        Stage::Deleted => "its object is gone, and what is left in the runtime is being removed",
        Stage::Finished => "nothing of it is left on this node",
    };
    let (namespace, name, shown) = (&story.namespace, &story.name, story.shown());
    if *already {
        format!("{namespace}/{name} has ended already{shown}: the request changes nothing; {then}")
    } else {
        format!("{namespace}/{name} has ended{shown}: none of its containers runs; {then}")
    }
}
