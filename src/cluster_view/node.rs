//! The kubelet and the agent of a node, each on one line. Pure.

use jiff::Timestamp;

use super::objects::{AgentView, KubeletView};
use crate::{model::foreign::ForeignText, ops::output::age_since};

/// The kubelet and its Lease on one line.
pub fn kubelet_line(kubelet: Option<&KubeletView>, lease_renewed: Option<Timestamp>, now: Timestamp) -> String {
    let lease = lease_renewed.map(|at| format!(", Lease renewed {} ago", age_since(at, now)));
    let lease = lease.unwrap_or_default();
    let Some(kubelet) = kubelet else {
        return format!("it has never reported{lease}");
    };
    let since = kubelet.since.map(|since| format!(" for {}", age_since(since, now)));
    let reason = kubelet
        .reason
        .as_deref()
        .map(|reason| format!(" ({})", ForeignText::new(reason)));
    format!(
        "{}{}{}{lease}",
        kubelet.word(),
        since.unwrap_or_default(),
        reason.unwrap_or_default()
    )
}

/// The agent on one line.
pub fn agent_line(agent: Option<&AgentView>, now: Timestamp) -> String {
    let Some(agent) = agent else {
        return "none has reported: is pod-teardown installed on this node, and runs with --node-condition true?"
            .to_owned();
    };
    let ago = |at: Option<Timestamp>| at.map_or_else(|| "never".to_owned(), |at| format!("{} ago", age_since(at, now)));
    format!(
        "{} ({}), reported {}: {}",
        agent.state.word(),
        ForeignText::new(&agent.reason),
        ago(agent.reported),
        ForeignText::new(&agent.message)
    )
}
