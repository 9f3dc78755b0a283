//! `kubectl teardown nodes`: the kubelet and the agent of each node, as the conditions of its Node show them. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, NodeCondition, Pod};
use serde::Serialize;

use crate::{
    clock::between,
    handover::condition::{condition_of, condition_of_type},
    model::{event::Reason, foreign::ForeignText},
    ops::output::{age_since, cell, table, wide_cell},
};

/// An agent renews its condition every 5 minutes. After more than twice this time it does not run, or cannot reach the API server.
const MAX_REPORT_AGE: Duration = Duration::from_secs(11 * 60);

/// Source of the agent's events.
const AGENT: &str = "pod-teardown";

/// State of a kubelet or an agent, with the condition that shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ComponentView {
    /// Of a kubelet: `Ready`, `NotReady` or `Unknown`. Of an agent: `active`, `standby`, `observing` (it only observes), `blocked`
    /// (it is active, but may not act), `stopped` or `silent` (it has not renewed its report).
    pub state: &'static str,
    /// Reason of the condition.
    pub reason: String,
    /// Message of the condition.
    pub message: String,
    /// When the status of the condition changed last.
    pub since: Option<Timestamp>,
    /// When it was reported last.
    pub reported: Option<Timestamp>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeLine {
    /// Its name.
    pub name: String,
    /// Its kubelet; `None` before the kubelet has reported.
    pub kubelet: Option<ComponentView>,
    /// Its agent; `None` if none has reported.
    pub agent: Option<ComponentView>,
    /// Number of its terminating pods; `None` if pods cannot be read.
    pub terminating: Option<usize>,
    /// Number of those that an agent reports as blocked; `None` if pods or events cannot be read.
    pub blocked: Option<usize>,
}

/// Whether an agent sent the event because a pod does not terminate.
pub(super) fn is_blocked_pod(event: &Event) -> bool {
    component(event) == AGENT && event.reason == Some(Reason::TeardownBlocked.to_string())
}

pub(super) fn component(event: &Event) -> &str {
    let source = event.source.as_ref().and_then(|source| source.component.as_deref());
    source.unwrap_or_default()
}

// === impl ComponentView ===

impl ComponentView {
    fn new(condition: &NodeCondition, state: &'static str) -> Self {
        Self {
            state,
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
            since: condition.last_transition_time.as_ref().map(|time| time.0),
            reported: condition.last_heartbeat_time.as_ref().map(|time| time.0),
        }
    }

    /// The kubelet of a Node; `None` before it has reported.
    pub fn of_kubelet(node: &Node) -> Option<Self> {
        let condition = condition_of_type(node, "Ready")?;
        let state = match &*condition.status {
            "True" => "Ready",
            "False" => "NotReady",
            _ => "Unknown",
        };
        Some(Self::new(condition, state))
    }

    /// The agent of a Node; `None` if none has reported.
    pub fn of_agent(node: &Node, now: Timestamp) -> Option<Self> {
        let condition = condition_of(node)?;
        let reported = condition.last_heartbeat_time.as_ref();
        let is_old = reported.is_none_or(|reported| between(reported.0, now) > MAX_REPORT_AGE);
        let state = match (&*condition.status, condition.reason.as_deref()) {
            ("Unknown", _) => "stopped",
            _ if is_old => "silent",
            ("True", _) => "active",
            (_, Some("Observing")) => "observing",
            (_, Some("Blocked")) => "blocked",
            _ => "standby",
        };
        Some(Self::new(condition, state))
    }

    /// When it was reported last, such as `reported 12s ago`.
    fn last_report(&self, now: Timestamp) -> String {
        match self.reported {
            None => "never reported".to_owned(),
            Some(at) => format!("reported {} ago", age_since(at, now)),
        }
    }

    /// It on one line.
    pub fn line(&self, now: Timestamp) -> String {
        let (reason, message) = (ForeignText::new(&self.reason), ForeignText::new(&self.message));
        let since = self.since.map(|since| format!(" for {}", age_since(since, now)));
        let (since, report) = (since.unwrap_or_default(), self.last_report(now));
        format!("{}{since} ({reason}), {report}: {message}", self.state)
    }
}

/// All nodes, by name. Deleted pods and events are `None` if the user may not read them.
pub fn nodes(nodes: &[Node], deleted: Option<&[Pod]>, events: Option<&[Event]>, now: Timestamp) -> Vec<NodeLine> {
    let blocked: Option<BTreeSet<Option<&str>>> = events.map(|events| {
        let blocked = events.iter().filter(|event| is_blocked_pod(event));
        blocked.map(|event| event.involved_object.uid.as_deref()).collect()
    });
    let mut uids = BTreeMap::<&str, Vec<Option<&str>>>::new();
    for pod in deleted.unwrap_or_default() {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        uids.entry(node.unwrap_or_default())
            .or_default()
            .push(pod.metadata.uid.as_deref());
    }
    let line = |node: &Node| {
        let name = node.metadata.name.clone().unwrap_or_default();
        let uids = uids.get(&*name).map_or(&[][..], Vec::as_slice);
        let count_blocked = |blocked: &BTreeSet<_>| uids.iter().filter(|uid| blocked.contains(*uid)).count();
        NodeLine {
            kubelet: ComponentView::of_kubelet(node),
            agent: ComponentView::of_agent(node, now),
            terminating: deleted.map(|_| uids.len()),
            blocked: deleted.and(blocked.as_ref()).map(count_blocked),
            name,
        }
    };
    let mut lines: Vec<NodeLine> = nodes.iter().map(line).collect();
    lines.sort_by(|a, b| a.name.cmp(&b.name));
    lines
}

/// Formats the nodes; `is_wide` adds since when, and the agent's message.
pub fn text(lines: &[NodeLine], is_wide: bool, now: Timestamp) -> String {
    if lines.is_empty() {
        return "No nodes found.\n".to_owned();
    }
    let count = |count: Option<usize>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
    let state = |it: Option<&ComponentView>| it.map_or("<none>", |it| it.state);
    let since = |it: &ComponentView| it.since.map(|since| age_since(since, now));
    let reason = |it: &ComponentView| match it.state {
        "silent" => it.last_report(now),
        _ => it.reason.clone(),
    };
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let row = |line: &NodeLine| {
        let (kubelet, agent) = (line.kubelet.as_ref(), line.agent.as_ref());
        [
            cell("NAME", &line.name),
            cell("KUBELET", state(kubelet)),
            wide_cell("SINCE", or_dash(kubelet.and_then(since))),
            cell("AGENT", state(agent)),
            wide_cell("SINCE", or_dash(agent.and_then(since))),
            cell("REASON", or_dash(agent.map(reason))),
            cell("TERMINATING", count(line.terminating)),
            cell("BLOCKED", count(line.blocked)),
            wide_cell("MESSAGE", agent.map_or("-", |agent| &agent.message)),
        ]
    };
    table(lines.iter().map(row), is_wide)
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
            ComponentView::of_agent(&node, now).unwrap().state
        };
        let recent = "2026-01-01T00:50:00Z";
        for (status, reason, reported, expected) in [
            ("True", "KubeletDown", recent, "active"),
            ("True", "KubeletDown", "2026-01-01T00:48:00Z", "silent"),
            ("False", "KubeletAlive", recent, "standby"),
            ("False", "Observing", recent, "observing"),
            ("False", "Blocked", recent, "blocked"),
            ("Unknown", "AgentStopped", "2026-01-01T00:00:00Z", "stopped"),
        ] {
            assert_eq!(
                state(status, reason, reported),
                expected,
                "{status} {reason} {reported}"
            );
        }
        assert_eq!(ComponentView::of_agent(&Node::default(), now), None);
    }

    #[test]
    fn each_node_has_its_roles_and_counts_and_unreadable_counts_are_unknown() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let condition = |kind: &str, status: &str, reason: &str| json!({ "type": kind, "status": status, "reason": reason, "lastHeartbeatTime": "2026-01-01T00:59:00Z" });
        let objects: Vec<Node> = serde_json::from_value(json!([
            { "metadata": { "name": "b" } },
            { "metadata": { "name": "a" }, "status": { "conditions": [
                condition("Ready", "Unknown", "NodeStatusUnknown"),
                condition("PodTeardownActive", "True", "KubeletDown"),
            ] } },
        ]))
        .unwrap();
        let pods: Vec<Pod> = serde_json::from_value(json!([
            { "metadata": { "uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z" }, "spec": { "nodeName": "a" } },
            { "metadata": { "uid": "2", "deletionTimestamp": "2026-01-01T00:00:00Z" }, "spec": { "nodeName": "a" } },
            { "metadata": { "uid": "4", "deletionTimestamp": "2026-01-01T00:00:00Z" } },
        ]))
        .unwrap();
        let event = |uid: &str, component: &str| {
            json!({
                "reason": "TeardownBlocked", "involvedObject": { "uid": uid }, "source": { "component": component },
            })
        };
        let events: Vec<Event> = serde_json::from_value(json!([
            event("1", "pod-teardown"),
            event("2", "other"),
            event("3", "pod-teardown")
        ]))
        .unwrap();
        let lines = nodes(&objects, Some(&pods), Some(&events), now);
        assert_eq!(
            text(&lines, false, now),
            "NAME   KUBELET   AGENT    REASON        TERMINATING   BLOCKED\n\
             a      Unknown   active   KubeletDown   2             1\n\
             b      <none>    <none>   -             0             0\n"
        );
        let lines = nodes(&objects, Some(&pods), None, now);
        assert_eq!((lines[0].terminating, lines[0].blocked), (Some(2), None));
        let lines = nodes(&objects, None, Some(&events), now);
        assert_eq!((lines[0].terminating, lines[0].blocked), (None, None));
    }
}
