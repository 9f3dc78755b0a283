//! The kubelet and the agent of a node, as the conditions of its Node show them. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde::Serialize;

use crate::{
    clock::between,
    handover::condition::{condition_of, condition_of_type},
    model::foreign::ForeignText,
    ops::output::age_since,
};

/// An agent renews its condition every 5 minutes. After more than twice this time it does not run, or cannot reach the API server.
const MAX_REPORT_AGE: Duration = Duration::from_secs(11 * 60);

/// The kubelet, as the control plane sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct KubeletView {
    /// Status of the condition `Ready`: `True`, `False` or `Unknown`.
    pub ready: String,
    /// Reason of that condition.
    pub reason: Option<String>,
    /// Since when.
    pub since: Option<Timestamp>,
}

/// What an agent does on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AgentState {
    /// It terminates the pods of its node.
    Active,
    /// A kubelet does, or nothing does.
    Standby,
    /// It only observes.
    Observing,
    /// It is active, but may not act.
    Blocked,
    /// It was stopped.
    Stopped,
    /// It has not renewed its report.
    Silent,
}

/// The agent, as its condition shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AgentView {
    /// What it does.
    pub state: AgentState,
    /// Reason of the condition.
    pub reason: String,
    /// Message of the condition.
    pub message: String,
    /// When the status of the condition changed last.
    pub since: Option<Timestamp>,
    /// When the agent reported last.
    pub reported: Option<Timestamp>,
}

// === impl KubeletView ===

impl KubeletView {
    /// The kubelet of a Node; `None` before it has reported.
    pub fn of(node: &Node) -> Option<Self> {
        let ready = condition_of_type(node, "Ready")?;
        Some(Self {
            ready: ready.status.clone(),
            reason: ready.reason.clone(),
            since: ready.last_transition_time.as_ref().map(|time| time.0),
        })
    }

    /// As kubectl shows it.
    pub fn word(&self) -> &'static str {
        match &*self.ready {
            "True" => "Ready",
            "False" => "NotReady",
            _ => "Unknown",
        }
    }

    /// It and its Lease on one line.
    pub fn line(kubelet: Option<&Self>, lease_renewed: Option<Timestamp>, now: Timestamp) -> String {
        let mut line = match kubelet {
            None => "it has never reported".to_owned(),
            Some(kubelet) => {
                let since = kubelet.since.map(|since| format!(" for {}", age_since(since, now)));
                let reason = kubelet
                    .reason
                    .as_deref()
                    .map(|reason| format!(" ({})", ForeignText::new(reason)));
                let word = kubelet.word();
                format!("{word}{}{}", since.unwrap_or_default(), reason.unwrap_or_default())
            }
        };
        if let Some(at) = lease_renewed {
            line += &format!(", Lease renewed {} ago", age_since(at, now));
        }
        line
    }
}

// === impl AgentState ===

impl AgentState {
    /// The word in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Standby => "standby",
            Self::Observing => "observing",
            Self::Blocked => "blocked",
            Self::Stopped => "stopped",
            Self::Silent => "silent",
        }
    }
}

// === impl AgentView ===

impl AgentView {
    /// The agent of a Node; `None` if none has reported.
    pub fn of(node: &Node, now: Timestamp) -> Option<Self> {
        let condition = condition_of(node)?;
        let reason = condition.reason.clone().unwrap_or_default();
        let reported = condition.last_heartbeat_time.as_ref().map(|time| time.0);
        let is_old = reported.is_none_or(|reported| between(reported, now) > MAX_REPORT_AGE);
        let state = match (&*condition.status, &*reason) {
            ("Unknown", _) => AgentState::Stopped,
            _ if is_old => AgentState::Silent,
            ("True", _) => AgentState::Active,
            (_, "Observing") => AgentState::Observing,
            (_, "Blocked") => AgentState::Blocked,
            _ => AgentState::Standby,
        };
        Some(Self {
            state,
            reason,
            message: condition.message.clone().unwrap_or_default(),
            since: condition.last_transition_time.as_ref().map(|time| time.0),
            reported,
        })
    }

    /// When it reported last, such as `reported 12s ago`.
    pub fn last_report(&self, now: Timestamp) -> String {
        match self.reported {
            None => "never reported".to_owned(),
            Some(at) => format!("reported {} ago", age_since(at, now)),
        }
    }

    /// It on one line.
    pub fn line(agent: Option<&Self>, now: Timestamp) -> String {
        let Some(agent) = agent else {
            return "none has reported: is pod-teardown installed on this node, and runs with --node-condition true?"
                .to_owned();
        };
        let (state, report) = (agent.state.word(), agent.last_report(now));
        let (reason, message) = (ForeignText::new(&agent.reason), ForeignText::new(&agent.message));
        format!("{state} ({reason}), {report}: {message}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::handover::condition::CONDITION_TYPE;

    #[test]
    fn agent_that_has_not_reported_for_eleven_minutes_is_silent() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let state = |status: &str, reason: &str, reported: &str| {
            let condition = json!({
                "type": CONDITION_TYPE, "status": status, "reason": reason, "lastHeartbeatTime": reported,
            });
            let node: Node = serde_json::from_value(json!({ "status": { "conditions": [condition] } })).unwrap();
            AgentView::of(&node, now).unwrap().state
        };
        let recent = "2026-01-01T00:50:00Z";
        for (status, reason, reported, expected) in [
            ("True", "KubeletDown", recent, AgentState::Active),
            ("True", "KubeletDown", "2026-01-01T00:48:00Z", AgentState::Silent),
            ("False", "KubeletAlive", recent, AgentState::Standby),
            ("False", "Observing", recent, AgentState::Observing),
            ("False", "Blocked", recent, AgentState::Blocked),
            ("Unknown", "AgentStopped", "2026-01-01T00:00:00Z", AgentState::Stopped),
        ] {
            assert_eq!(
                state(status, reason, reported),
                expected,
                "{status} {reason} {reported}"
            );
        }
        assert_eq!(AgentView::of(&Node::default(), now), None);
    }
}
