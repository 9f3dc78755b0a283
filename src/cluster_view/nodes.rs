//! `kubectl teardown nodes`: one line for each node. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use serde::Serialize;

use super::{
    node::{AgentState, AgentView, KubeletView},
    pod::is_blocked_pod,
};
use crate::ops::output::{age_since, table};

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeLine {
    /// Its name.
    pub name: String,
    /// Its kubelet; `None` before the kubelet has reported.
    pub kubelet: Option<KubeletView>,
    /// Its agent; `None` if none has reported.
    pub agent: Option<AgentView>,
    /// Number of its terminating pods; `None` if pods cannot be read.
    pub terminating: Option<usize>,
    /// Number of those that an agent reports as blocked; `None` if pods or events cannot be read.
    pub blocked: Option<usize>,
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
            kubelet: KubeletView::of(node),
            agent: AgentView::of(node, now),
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
    let cells = |line: &NodeLine| {
        let kubelet = line.kubelet.as_ref().map_or("<none>", KubeletView::word);
        let (state, reason) = match &line.agent {
            None => ("<none>", "-".to_owned()),
            Some(agent) if agent.state == AgentState::Silent => (agent.state.word(), agent.last_report(now)),
            Some(agent) => (agent.state.word(), agent.reason.clone()),
        };
        let [terminating, blocked] = [line.terminating, line.blocked].map(count);
        [
            line.name.clone(),
            kubelet.to_owned(),
            state.to_owned(),
            reason,
            terminating,
            blocked,
        ]
    };
    let header = ["NAME", "KUBELET", "AGENT", "REASON", "TERMINATING", "BLOCKED"];
    if !is_wide {
        return table(header, &lines.iter().map(cells).collect::<Vec<_>>());
    }
    let since = |since: Option<Timestamp>| since.map_or_else(|| "-".to_owned(), |since| age_since(since, now));
    let wide = |line: &NodeLine| {
        let [name, kubelet, state, reason, terminating, blocked] = cells(line);
        let kubelet_since = since(line.kubelet.as_ref().and_then(|kubelet| kubelet.since));
        let agent_since = since(line.agent.as_ref().and_then(|agent| agent.since));
        let message = line
            .agent
            .as_ref()
            .map_or_else(|| "-".to_owned(), |agent| agent.message.clone());
        [
            name,
            kubelet,
            kubelet_since,
            state,
            agent_since,
            reason,
            terminating,
            blocked,
            message,
        ]
    };
    let header = [
        "NAME",
        "KUBELET",
        "SINCE",
        "AGENT",
        "SINCE",
        "REASON",
        "TERMINATING",
        "BLOCKED",
        "MESSAGE",
    ];
    table(header, &lines.iter().map(wide).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
