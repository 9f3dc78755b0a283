//! `kubectl teardown status NODE`: a node, its agent and its terminating pods. Pure.

use std::{collections::HashMap, fmt::Write as _};

use jiff::Timestamp;
use serde::Serialize;

use super::objects::{AgentView, EventObject, KubeletView, NodeObject, PodObject};
use crate::{
    clock::between,
    model::foreign::ForeignText,
    ops::output::{age_since, table},
    words::{age, format_count},
};

/// A node with its terminating pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Its name.
    pub name: String,
    /// Its kubelet; `None` before the kubelet has reported.
    pub kubelet: Option<KubeletView>,
    /// When the kubelet renewed its Lease.
    pub lease_renewed: Option<Timestamp>,
    /// Its agent; `None` if none has reported.
    pub agent: Option<AgentView>,
    /// Number of its pods; `None` if they cannot be read.
    pub pods: Option<usize>,
    /// Its terminating pods; `None` if they cannot be read.
    pub terminating: Option<Vec<TerminatingPod>>,
    /// Number of those that an agent reports as blocked; `None` if pods or events cannot be read.
    pub blocked: Option<usize>,
    /// The agent's events about the Node, the latest last.
    pub events: Vec<NodeEvent>,
    /// What could not be read.
    pub unread: Vec<String>,
}

/// A terminating pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TerminatingPod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Phase in the API.
    pub phase: String,
    /// When its grace period expires.
    pub grace_expires: Timestamp,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// Why it is blocked, by the agent's last event. `None` also if events cannot be read.
    pub blocked: Option<String>,
}

/// An event about the Node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeEvent {
    /// When it happened last.
    pub at: Timestamp,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
}

/// A node from its objects. `node_events`: about the Node. `pod_events`: about pods. What cannot be read is `None`.
pub fn report(
    node: &NodeObject,
    lease_renewed: Option<Timestamp>,
    pods: Option<&[PodObject]>,
    node_events: Option<&[EventObject]>,
    pod_events: Option<&[EventObject]>,
    mut unread: Vec<String>,
    now: Timestamp,
) -> NodeReport {
    // Of several events about a pod, the last one.
    let blocked: HashMap<&str, &str> = sent_by_agents(pod_events.unwrap_or_default())
        .filter(|event| event.is_blocked_pod())
        .map(|event| (&*event.involved_object.uid, &*event.message))
        .collect();
    let terminating = pods.map(|pods| terminating_pods(pods, &blocked));
    let count_blocked = |pods: &Vec<TerminatingPod>| pods.iter().filter(|pod| pod.blocked.is_some()).count();
    let about_node =
        sent_by_agents(node_events.unwrap_or_default()).filter(|event| event.involved_object.uid == node.metadata.uid);
    unread.dedup();
    NodeReport {
        name: node.metadata.name.clone(),
        kubelet: node.kubelet(),
        lease_renewed,
        agent: node.agent(now),
        pods: pods.map(<[_]>::len),
        blocked: pod_events.and(terminating.as_ref()).map(count_blocked),
        terminating,
        events: about_node
            .map(|event| NodeEvent {
                at: event.last(),
                reason: event.reason.clone(),
                message: event.message.clone(),
            })
            .collect(),
        unread,
    }
}

/// The agents' events, the latest last.
fn sent_by_agents(events: &[EventObject]) -> impl Iterator<Item = &EventObject> {
    let mut sent: Vec<&EventObject> = events.iter().filter(|event| event.is_of_agent()).collect();
    sent.sort_by_key(|event| event.last());
    sent.into_iter()
}

/// The terminating pods, sorted by the end of their grace periods.
fn terminating_pods(pods: &[PodObject], blocked: &HashMap<&str, &str>) -> Vec<TerminatingPod> {
    let mut terminating: Vec<TerminatingPod> = pods
        .iter()
        .filter_map(|pod| {
            let meta = &pod.metadata;
            Some(TerminatingPod {
                namespace: meta.namespace.clone(),
                name: meta.name.clone(),
                uid: meta.uid.clone(),
                phase: pod.status.phase.clone(),
                grace_expires: meta.deletion_timestamp?,
                finalizers: meta.finalizers.clone(),
                blocked: blocked.get(&*meta.uid).map(|&message| message.to_owned()),
            })
        })
        .collect();
    terminating.sort_by(|a, b| (a.grace_expires, &a.namespace, &a.name).cmp(&(b.grace_expires, &b.namespace, &b.name)));
    terminating
}

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

/// Formats the report.
pub fn text(report: &NodeReport, is_wide: bool, now: Timestamp) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "Node      {}", ForeignText::new(&report.name));
    let kubelet = kubelet_line(report.kubelet.as_ref(), report.lease_renewed, now);
    let _ = writeln!(out, "Kubelet   {kubelet}");
    let _ = writeln!(out, "Agent     {}", agent_line(report.agent.as_ref(), now));
    let pods = match (report.pods, &report.terminating) {
        (Some(pods), Some(terminating)) => {
            let pods = format_count(pods.try_into().unwrap_or(u64::MAX), "pod");
            let blocked = report
                .blocked
                .map_or_else(|| "?".to_owned(), |blocked| blocked.to_string());
            format!("{pods}, {} terminating, {blocked} blocked", terminating.len())
        }
        _ => "unknown".to_owned(),
    };
    let _ = writeln!(out, "Pods      {pods}");
    for unread in &report.unread {
        let _ = writeln!(out, "Unknown   {}", ForeignText::new(unread));
    }
    match report.terminating.as_deref() {
        None => {}
        Some([]) => out.push_str("\nNo pod is terminating.\n"),
        Some(terminating) => {
            let table = pods_table(terminating, report.blocked.is_some(), is_wide, now);
            out.extend(["\n", &table]);
        }
    }
    if !report.events.is_empty() {
        out.push_str("\nEvents of the agent:\n");
    }
    for event in &report.events {
        let ago = age_since(event.at, now);
        let (reason, message) = (ForeignText::new(&event.reason), ForeignText::new(&event.message));
        let _ = writeln!(out, "  {ago:<6} {reason:<20} {message}");
    }
    out
}

fn pods_table(pods: &[TerminatingPod], has_events: bool, is_wide: bool, now: Timestamp) -> String {
    let cells = |pod: &TerminatingPod| {
        let left = between(now, pod.grace_expires);
        let grace = match left.is_zero() {
            true => format!("expired {} ago", age_since(pod.grace_expires, now)),
            false => format!("{} left", age(left)),
        };
        let waits = match (&pod.blocked, pod.finalizers.is_empty()) {
            (Some(blocked), _) => blocked.clone(),
            (None, false) => format!("finalizers: {}", pod.finalizers.join(", ")),
            (None, true) if has_events => "-".to_owned(),
            (None, true) => "?".to_owned(),
        };
        [pod.namespace.clone(), pod.name.clone(), pod.phase.clone(), grace, waits]
    };
    let header = ["NAMESPACE", "NAME", "PHASE", "GRACE", "WAITING-FOR"];
    if !is_wide {
        return table(header, &pods.iter().map(cells).collect::<Vec<_>>());
    }
    let wide = |pod: &TerminatingPod| {
        let [namespace, name, phase, grace, waits] = cells(pod);
        [
            namespace,
            name,
            pod.uid.clone(),
            phase,
            grace,
            pod.finalizers.join(","),
            waits,
        ]
    };
    let header = [
        "NAMESPACE",
        "NAME",
        "UID",
        "PHASE",
        "GRACE",
        "FINALIZERS",
        "WAITING-FOR",
    ];
    table(header, &pods.iter().map(wide).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn report_shows_the_agent_the_kubelet_and_what_blocks_each_terminating_pod() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let node: NodeObject = serde_json::from_value(json!({
            "metadata": { "name": "n1", "uid": "n-uid" },
            "status": { "conditions": [
                { "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
                  "lastTransitionTime": "2026-01-01T00:50:00Z" },
                { "type": "PodTeardownActive", "status": "True", "reason": "KubeletDown", "message": "the kubelet is down",
                  "lastHeartbeatTime": "2026-01-01T00:58:00Z" },
            ] },
        }))
        .unwrap();
        let pods: Vec<PodObject> = serde_json::from_value(json!([
            { "metadata": { "namespace": "d", "name": "late", "uid": "1", "deletionTimestamp": "2026-01-01T01:00:20Z",
                            "finalizers": ["a/b"] }, "status": { "phase": "Running" } },
            { "metadata": { "namespace": "d", "name": "stuck", "uid": "2", "deletionTimestamp": "2026-01-01T00:59:00Z" },
              "status": { "phase": "Running" } },
            { "metadata": { "namespace": "d", "name": "lives", "uid": "3" } },
        ]))
        .unwrap();
        let event = |uid: &str, reason: &str, at: &str, message: &str| {
            json!({ "reason": reason, "message": message, "involvedObject": { "uid": uid }, "lastTimestamp": at,
                    "source": { "component": "pod-teardown" } })
        };
        let events: Vec<EventObject> = serde_json::from_value(json!([
            event("2", "TeardownBlocked", "2026-01-01T00:59:50Z", "busy: pid 7"),
            event("2", "TeardownBlocked", "2026-01-01T00:59:40Z", "older"),
            event("n-uid", "TeardownActive", "2026-01-01T00:51:00Z", "took over"),
        ]))
        .unwrap();
        let report = report(
            &node,
            Some("2026-01-01T00:49:00Z".parse().unwrap()),
            Some(&pods),
            Some(&events),
            Some(&events),
            Vec::new(),
            now,
        );
        assert_eq!(
            text(&report, false, now),
            "Node      n1\n\
             Kubelet   Unknown for 10m (NodeStatusUnknown), Lease renewed 11m ago\n\
             Agent     active (KubeletDown), reported 2m ago: the kubelet is down\n\
             Pods      3 pods, 2 terminating, 1 blocked\n\n\
             NAMESPACE   NAME    PHASE     GRACE             WAITING-FOR\n\
             d           stuck   Running   expired 60s ago   busy: pid 7\n\
             d           late    Running   20s left          finalizers: a/b\n\n\
             Events of the agent:\n  9m     TeardownActive       took over\n"
        );
    }

    #[test]
    fn pods_and_events_that_cannot_be_read_are_unknown() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let node = NodeObject::default();
        let pods: Vec<PodObject> = serde_json::from_value(json!([
            { "metadata": { "namespace": "d", "name": "p", "uid": "1", "deletionTimestamp": "2026-01-01T00:59:00Z" } },
        ]))
        .unwrap();
        let unread = |what: &str| vec![format!("cannot read {what}"); 2];
        let without_pods = report(&node, None, None, Some(&[]), Some(&[]), unread("pods"), now);
        let shown = text(&without_pods, false, now);
        assert!(
            shown.ends_with("Pods      unknown\nUnknown   cannot read pods\n"),
            "{shown}"
        );
        assert_eq!(serde_json::to_value(&without_pods).unwrap()["terminating"], json!(null));

        let without_events = report(&node, None, Some(&pods), None, None, unread("events"), now);
        let shown = text(&without_events, false, now);
        assert!(
            shown.contains("1 pod, 1 terminating, ? blocked") && shown.trim_end().ends_with('?'),
            "{shown}"
        );
    }

    #[test]
    fn texts_of_the_api_server_cannot_forge_a_line() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let evil = "x\nNode      fake\u{1b}[2J";
        let node: NodeObject = serde_json::from_value(json!({
            "metadata": { "name": evil, "uid": "n-uid" },
            "status": { "conditions": [
                { "type": "Ready", "status": evil, "reason": evil },
                { "type": "PodTeardownActive", "status": "True", "reason": evil, "message": evil },
            ] },
        }))
        .unwrap();
        let pods: Vec<PodObject> = serde_json::from_value(json!([
            { "metadata": { "namespace": evil, "name": evil, "uid": "1", "deletionTimestamp": "2026-01-01T00:59:00Z",
                            "finalizers": [evil] }, "status": { "phase": evil } },
        ]))
        .unwrap();
        let events: Vec<EventObject> = serde_json::from_value(json!([
            { "reason": evil, "message": evil, "involvedObject": { "uid": "n-uid" }, "source": { "component": "pod-teardown" } },
        ]))
        .unwrap();
        let report = report(
            &node,
            None,
            Some(&pods),
            Some(&events),
            Some(&[]),
            vec![evil.to_owned()],
            now,
        );
        for is_wide in [false, true] {
            let shown = text(&report, is_wide, now);
            let fake = shown.lines().filter(|line| line.starts_with("Node      fake")).count();
            assert!(fake == 0 && !shown.contains('\u{1b}'), "{shown}");
        }
    }
}
