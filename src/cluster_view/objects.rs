//! The used fields of the API's objects, and what they show. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use serde::{Deserialize, Serialize};

use crate::{
    clock::between,
    handover::condition::CONDITION_TYPE,
    model::{event::Reason, pod::is_terminal_phase},
};

/// Source of the agent's events.
const AGENT: &str = "pod-teardown";
/// An agent renews its condition every 5 minutes. After more than twice this time it does not run, or cannot reach the API server.
const MAX_REPORT_AGE: Duration = Duration::from_secs(11 * 60);

/// The used metadata of an object.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// When the grace period expires.
    pub deletion_timestamp: Option<Timestamp>,
    /// The grace period.
    pub deletion_grace_period_seconds: Option<u64>,
    /// Finalizers.
    pub finalizers: Vec<String>,
}

/// A Node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeObject {
    /// Metadata.
    pub metadata: Meta,
    /// Status.
    pub status: NodeStatus,
}

/// The used status of a Node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Conditions.
    pub conditions: Vec<NodeCondition>,
}

/// A Pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodObject {
    /// Metadata.
    pub metadata: Meta,
    /// Spec.
    pub spec: PodSpec,
    /// Status.
    pub status: PodStatus,
}

/// The used spec of a Pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Name of its Node; empty before it is scheduled.
    pub node_name: String,
}

/// The used status of a Pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// Phase.
    pub phase: String,
    /// Statuses of regular containers.
    pub container_statuses: Vec<ContainerStatus>,
}

/// The used status of a container.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ContainerStatus {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: ContainerState,
}

/// The state of a container.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Set while it runs.
    pub running: Option<serde::de::IgnoredAny>,
}

/// An Event.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EventObject {
    /// Metadata.
    pub metadata: Meta,
    /// The object that it is about.
    pub involved_object: Meta,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
    /// When it happened last; `None` in newer events, which have `eventTime`.
    pub last_timestamp: Option<Timestamp>,
    /// When it happened first.
    pub event_time: Option<Timestamp>,
    /// Its source.
    pub source: EventSource,
}

/// The source of an event.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct EventSource {
    /// `kubelet`, `pod-teardown` or another component.
    pub component: String,
}

/// The kubelet of a Node, as the control plane sees it.
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

/// What an agent does on its node, as its condition reports.
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

/// The agent of a Node, as its condition shows it.
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

// === impl NodeObject ===

impl NodeObject {
    fn condition(&self, kind: &str) -> Option<&NodeCondition> {
        self.status.conditions.iter().find(|condition| condition.type_ == kind)
    }

    /// Its kubelet; `None` before the kubelet has reported.
    pub fn kubelet(&self) -> Option<KubeletView> {
        let ready = self.condition("Ready")?;
        Some(KubeletView {
            ready: ready.status.clone(),
            reason: ready.reason.clone(),
            since: ready.last_transition_time.as_ref().map(|time| time.0),
        })
    }

    /// Its agent; `None` if none has reported.
    pub fn agent(&self, now: Timestamp) -> Option<AgentView> {
        let condition = self.condition(CONDITION_TYPE)?;
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
        Some(AgentView {
            state,
            reason,
            message: condition.message.clone().unwrap_or_default(),
            since: condition.last_transition_time.as_ref().map(|time| time.0),
            reported,
        })
    }
}

// === impl KubeletView ===

impl KubeletView {
    /// Whether the control plane considers it ready.
    pub fn is_ready(&self) -> bool {
        self.ready == "True"
    }

    /// Whether the control plane has a recent report of the kubelet.
    pub fn has_recent_report(&self) -> bool {
        self.ready != "Unknown"
    }

    /// As kubectl shows it.
    pub fn word(&self) -> &'static str {
        match &*self.ready {
            "True" => "Ready",
            "False" => "NotReady",
            _ => "Unknown",
        }
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

// === impl PodObject ===

impl PodObject {
    /// Whether it is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether it has terminated, as the API shows it.
    pub fn has_terminal_phase(&self) -> bool {
        is_terminal_phase(&self.status.phase)
    }

    /// Names of the containers that run, as the API shows them.
    pub fn running(&self) -> Vec<&str> {
        let statuses = self.status.container_statuses.iter();
        let running = statuses.filter(|it| it.state.running.is_some());
        running.map(|it| &*it.name).collect()
    }
}

// === impl EventObject ===

impl EventObject {
    /// When it happened last.
    pub fn last(&self) -> Timestamp {
        self.last_timestamp.or(self.event_time).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Whether an agent sent it because a pod does not terminate.
    pub fn is_blocked_pod(&self) -> bool {
        self.source.component == AGENT && self.reason == Reason::TeardownBlocked.as_str()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn agent_that_has_not_reported_for_eleven_minutes_is_silent() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let state = |status: &str, reason: &str, reported: &str| {
            let condition = json!({
                "type": CONDITION_TYPE, "status": status, "reason": reason, "lastHeartbeatTime": reported,
            });
            let node: NodeObject = serde_json::from_value(json!({ "status": { "conditions": [condition] } })).unwrap();
            node.agent(now).unwrap().state
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
        assert_eq!(NodeObject::default().agent(now), None);
    }
}
