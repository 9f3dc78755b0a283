//! `kubectl teardown why POD`: why a pod still exists, as far as the API shows it. Pure.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};

use super::{
    nodes::{ComponentView, component, is_blocked_pod},
    read::{ReadError, Surroundings},
};
use crate::{
    clock::between,
    explanation::{
        Explanation, ObjectFacts,
        cause::{Cause, CauseKind, Severity},
    },
    model::{
        pod::{Deletion, is_running, is_terminal_phase},
        termination::Terminator,
    },
    ops::output::age_since,
    teardown::{
        diagnosis::{conclusion, grace_period},
        grace::CountedGrace,
    },
    words::{age, escape_control_chars},
};

const REPAIR_NODE: &str = "repair the node or its network, or start its kubelet or pod-teardown; do not delete the pod with force while its \
    processes may run";
/// Reasons of the kubelet's events that a terminating pod can wait for; the agent uses the same.
const FAILURES: [&str; 3] = ["FailedKillPod", "FailedUnMount", "FailedPreStopHook"];
/// An event that is older than this may be about something that has passed.
const MAX_EVENT_AGE: Duration = Duration::from_secs(15 * 60);
/// A kubelet renews its Lease every 10 s. Most of this time allows for the difference of two clocks.
const MAX_LEASE_AGE: Duration = Duration::from_secs(2 * 60);

/// The node of a pod.
struct NodeView {
    kubelet: String,
    agent: String,
    terminator: Terminator,
    /// Nothing recent is known of its kubelet.
    is_kubelet_unknown: bool,
}

/// Explains a pod by its object and the objects around it.
pub fn explain(pod: &Pod, around: &Surroundings, now: Timestamp) -> Explanation {
    let (meta, status) = (&pod.metadata, pod.status.clone().unwrap_or_default());
    let [namespace, name, uid] = [&meta.namespace, &meta.name, &meta.uid].map(|it| it.as_deref().unwrap_or_default());
    let node_name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let node_name = node_name.unwrap_or_default();
    let statuses = status.container_statuses.iter().flatten();
    let running: Vec<&str> = statuses.filter(|it| is_running(it)).map(|it| &*it.name).collect();
    let phase = status.phase.as_deref();
    let has_ended = phase.is_some_and(is_terminal_phase);
    let node = NodeView::of(around, now);

    let (mut causes, mut facts) = (Vec::new(), Vec::new());
    if let Some(expires) = &meta.deletion_timestamp {
        let (ago, left) = (age_since(expires.0, now), between(now, expires.0));
        facts.push(match left.is_zero() {
            true => format!("is being deleted; its grace period expired {ago} ago"),
            false => format!("is being deleted; its grace period expires in {}", age(left)),
        });
        causes.extend(cause_of_node(node_name, &node, around));
        causes.extend(causes_of_events(&around.events, now));
        let deletion = Deletion {
            timestamp: expires.0,
            grace: meta.deletion_grace_period_seconds,
        };
        causes.extend(cause_of_grace_period(deletion, node.terminator, now));
        // The object goes only after the node is done, so finalizers hold it alone once it has a terminal phase.
        let is_done = around.node.is_none() || has_ended && running.is_empty();
        let severity = if is_done { Severity::Blocking } else { Severity::Later };
        let finalizers = meta.finalizers.iter().flatten();
        causes.extend(finalizers.map(|finalizer| Cause::finalizer(severity, finalizer)));
    } else if has_ended {
        causes.push(Cause::ended_not_deleted(phase, None));
    } else {
        causes.push(Cause::not_deleted(phase, None));
    }
    causes.sort_by_key(|cause| cause.severity);

    facts.extend(phase.map(|phase| format!("phase {phase}")));
    if !running.is_empty() {
        facts.push(format!("running containers, as last reported: {}", running.join(", ")));
    }
    let mut end = conclusion(&causes);
    if node_name.is_empty() {
        facts.push("is not scheduled to a node".to_owned());
    } else {
        facts.push(format!("node {node_name}"));
        end += &format!(
            " Containers, mounts and cgroups are seen on its node only: run pod-teardown why {namespace}/{name} on {node_name}."
        );
    }
    let mut objects = vec![ObjectFacts::new(&format!("Pod {namespace}/{name}"), uid, &facts)];
    if let Some(Ok(object)) = &around.node {
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        let facts = [format!("kubelet: {}", node.kubelet), format!("agent: {}", node.agent)];
        objects.push(ObjectFacts::new(&format!("Node {node_name}"), uid, &facts));
    }
    let end = escape_control_chars(&end);
    Explanation { objects, causes, end }
}

/// What is left of the grace period of a pod that is being deleted.
fn cause_of_grace_period(deletion: Deletion, terminator: Terminator, now: Timestamp) -> Option<Cause> {
    let grace = CountedGrace::by_kubelet(deletion, now);
    (!grace.left.is_zero()).then(|| grace_period(Severity::Waiting, grace, terminator))
}

fn cause_of_node(node: &str, view: &NodeView, around: &Surroundings) -> Option<Cause> {
    let NodeView { kubelet, agent, .. } = view;
    let (kind, message, remedy) = match around.node.as_ref()? {
        Err(ReadError::NotFound(_)) => (
            CauseKind::NodeMissing,
            format!("its Node {node} does not exist: no component reports what runs on that node"),
            "kube-controller-manager deletes such pods after about a minute, even if they run: shut the node down, or start its \
             kubelet, which registers the Node again",
        ),
        Err(why) => return Some(Cause::unknown("its Node", &why.to_string())),
        Ok(_) if view.terminator != Terminator::NoProcess => return None,
        Ok(_) => {
            let (kind, what) = match view.is_kubelet_unknown {
                true => (CauseKind::NodeUnreachable, format!("node {node} is unreachable")),
                false => (
                    CauseKind::NodeNotReady,
                    format!("the kubelet of node {node} reports that it is not ready"),
                ),
            };
            let message =
                format!("{what}, and no agent reports that it is active there; kubelet: {kubelet}; agent: {agent}");
            (kind, message, REPAIR_NODE)
        }
    };
    Some(Cause::new(Severity::Blocking, kind, message).with_remedy(remedy))
}

/// The last event of each reason that is not too old, the latest first.
fn causes_of_events(events: &Result<Vec<Event>, ReadError>, now: Timestamp) -> Vec<Cause> {
    let events = match events {
        Ok(events) => events,
        Err(why) => return vec![Cause::unknown("its events", &why.to_string())],
    };
    let is_failure =
        |event: &&Event| is_blocked_pod(event) || event.reason.as_deref().is_some_and(|it| FAILURES.contains(&it));
    let mut failures: Vec<&Event> = events.iter().filter(is_failure).collect();
    failures.sort_by_key(|event| std::cmp::Reverse(last(event)));
    let mut seen = BTreeSet::new();
    failures.retain(|event| between(last(event), now) <= MAX_EVENT_AGE && seen.insert(&event.reason));
    let cause = |event: &Event| {
        let severity = match is_blocked_pod(event) {
            true => Severity::Blocking,
            false => Severity::Waiting,
        };
        let [reason, text] = [&event.reason, &event.message].map(|it| it.as_deref().unwrap_or_default());
        let (component, ago) = (component(event), between(last(event), now).as_secs());
        let message = format!("{component} reported {reason} {ago}s ago: {text}");
        Cause::new(severity, CauseKind::Reported, message)
    };
    failures.into_iter().map(cause).collect()
}

/// When it happened last; newer events have only `eventTime`.
fn last(event: &Event) -> Timestamp {
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    last.or(event.event_time.as_ref().map(|time| time.0))
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

// === impl NodeView ===

impl NodeView {
    fn of(around: &Surroundings, now: Timestamp) -> Self {
        let node = around.node.as_ref().and_then(|node| node.as_ref().ok());
        let kubelet = node.and_then(ComponentView::of_kubelet);
        let agent = node.and_then(|node| ComponentView::of_agent(node, now));
        let state = kubelet.as_ref().map_or("Unknown", |kubelet| kubelet.state);
        let renewed = around.lease_renewed;
        // kube-controller-manager sets the condition Ready to Unknown, but only while it runs.
        let is_lease_old = renewed.is_some_and(|renewed| between(renewed, now) > MAX_LEASE_AGE);
        let is_kubelet_unknown = is_lease_old || state == "Unknown";
        let is_agent_active = agent.as_ref().is_some_and(|agent| agent.state == "active");
        let lease = renewed.map(|at| format!(", Lease renewed {} ago", age_since(at, now)));
        let kubelet = kubelet.map_or_else(|| "it has never reported".to_owned(), |kubelet| kubelet.line(now));
        const NO_AGENT: &str =
            "none has reported: is pod-teardown installed on this node, and runs with --node-condition true?";
        Self {
            kubelet: kubelet + &lease.unwrap_or_default(),
            agent: agent.map_or_else(|| NO_AGENT.to_owned(), |agent| agent.line(now)),
            terminator: match (is_agent_active, !is_kubelet_unknown && state == "Ready") {
                (true, _) => Terminator::Agent,
                (false, true) => Terminator::Kubelet,
                (false, false) => Terminator::NoProcess,
            },
            is_kubelet_unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn node(ready: &str, active: Option<(&str, &str)>) -> Result<Node, ReadError> {
        let mut conditions = vec![json!({ "type": "Ready", "status": ready })];
        conditions.extend(active.map(|(status, reason)| {
            json!({ "type": "PodTeardownActive", "status": status, "reason": reason, "lastHeartbeatTime": NOW })
        }));
        Ok(
            serde_json::from_value(json!({ "metadata": { "name": "n1" }, "status": { "conditions": conditions } }))
                .unwrap(),
        )
    }

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": { "namespace": "d", "name": "p", "uid": "u", "deletionTimestamp": "2026-01-01T00:59:00Z" },
            "spec": { "nodeName": "n1" },
            "status": { "phase": "Running", "containerStatuses": [{ "name": "main", "state": { "running": {} } }] },
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn kinds(pod: &Pod, node: Option<&Result<Node, ReadError>>, events: Value) -> Vec<(Severity, String)> {
        let events = Ok(serde_json::from_value(events).unwrap());
        kinds_with_lease(pod, node, None, events)
    }

    fn explained(
        pod: &Pod,
        node: Option<&Result<Node, ReadError>>,
        lease_renewed: Option<&str>,
        events: Result<Vec<Event>, ReadError>,
    ) -> Explanation {
        let around = Surroundings {
            node: node.cloned(),
            lease_renewed: lease_renewed.map(|at| at.parse().unwrap()),
            events,
        };
        explain(pod, &around, NOW.parse().unwrap())
    }

    fn kinds_with_lease(
        pod: &Pod,
        node: Option<&Result<Node, ReadError>>,
        lease_renewed: Option<&str>,
        events: Result<Vec<Event>, ReadError>,
    ) -> Vec<(Severity, String)> {
        let causes = explained(pod, node, lease_renewed, events).causes;
        let kind = |cause: &Cause| {
            serde_json::to_value(cause).unwrap()["kind"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        causes.iter().map(|cause| (cause.severity, kind(cause))).collect()
    }

    fn event(reason: &str, component: &str, at: &str) -> Value {
        json!({ "reason": reason, "message": "m", "lastTimestamp": at, "source": { "component": component } })
    }

    #[test]
    fn causes_follow_from_the_pod_its_node_and_its_events() {
        use Severity::{Blocking, Info, Later, Waiting};
        let (alive, dead) = (node("True", Some(("False", "KubeletAlive"))), node("Unknown", None));
        let active = node("Unknown", Some(("True", "KubeletDown")));
        let plain = pod(|_| {});
        let cause = |severity, kind: &str| vec![(severity, kind.to_owned())];
        assert_eq!(kinds(&plain, Some(&alive), json!([])), []);
        assert_eq!(kinds(&plain, Some(&active), json!([])), []);
        assert_eq!(
            kinds(&plain, Some(&dead), json!([])),
            cause(Blocking, "nodeUnreachable")
        );
        let living = pod(|pod| pod["metadata"]["deletionTimestamp"] = Value::Null);
        assert_eq!(kinds(&living, Some(&dead), json!([])), cause(Info, "notDeleted"));
        let in_grace = pod(|pod| pod["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:09Z".into());
        assert_eq!(kinds(&in_grace, Some(&alive), json!([])), cause(Waiting, "gracePeriod"));
        let held = pod(|pod| pod["metadata"]["finalizers"] = json!(["a/b"]));
        assert_eq!(kinds(&held, Some(&alive), json!([])), cause(Later, "finalizer"));
        let only_held = pod(|pod| {
            pod["metadata"]["finalizers"] = json!(["a/b"]);
            pod["status"] = json!({ "phase": "Failed" });
        });
        assert_eq!(kinds(&only_held, Some(&alive), json!([])), cause(Blocking, "finalizer"));
        let unscheduled = pod(|pod| {
            pod["metadata"]["finalizers"] = json!(["a/b"]);
            pod["spec"] = json!({});
        });
        assert_eq!(kinds(&unscheduled, None, json!([])), cause(Blocking, "finalizer"));
        let recent = "2026-01-01T00:58:00Z";
        let blocked = json!([event("TeardownBlocked", "pod-teardown", recent)]);
        assert_eq!(kinds(&plain, Some(&active), blocked), cause(Blocking, "reported"));
        let failed = json!([
            event("FailedUnMount", "kubelet", recent),
            event("FailedUnMount", "kubelet", NOW)
        ]);
        assert_eq!(kinds(&plain, Some(&alive), failed.clone()), cause(Waiting, "reported"));
        let failed = Ok(serde_json::from_value(failed).unwrap());
        let end = explained(&plain, Some(&alive), None, failed).end;
        assert!(end.starts_with("A step has failed and is tried again"), "{end}");
        let old = json!([
            event("FailedUnMount", "kubelet", "2026-01-01T00:40:00Z"),
            event("Pulled", "kubelet", recent)
        ]);
        assert_eq!(kinds(&plain, Some(&alive), old), []);
    }

    #[test]
    fn node_is_unreachable_if_its_kubelet_does_not_report_and_no_agent_is_active() {
        let (recent, old) = (Some("2026-01-01T00:59:00Z"), Some("2026-01-01T00:57:00Z"));
        for (ready, agent, lease, expected) in [
            ("Unknown", None, recent, Some("nodeUnreachable")),
            (
                "Unknown",
                Some(("False", "KubeletAlive")),
                None,
                Some("nodeUnreachable"),
            ),
            ("True", None, old, Some("nodeUnreachable")),
            ("False", None, old, Some("nodeUnreachable")),
            ("False", None, recent, Some("nodeNotReady")),
            ("True", None, recent, None),
            ("True", Some(("True", "KubeletDown")), old, None),
        ] {
            let causes = kinds_with_lease(&pod(|_| {}), Some(&node(ready, agent)), lease, Ok(Vec::new()));
            let found: Vec<&str> = causes.iter().map(|(_, kind)| kind.as_str()).collect();
            assert_eq!(found, Vec::from_iter(expected), "{ready} {agent:?} {lease:?}");
        }
        let missing = Err(ReadError::NotFound("Node n1".to_owned()));
        let why = explained(&pod(|_| {}), Some(&missing), None, Ok(Vec::new())).text();
        assert!(
            why.contains("BLOCKED") && why.contains("its Node n1 does not exist"),
            "{why}"
        );
    }

    #[test]
    fn nothing_is_concluded_from_what_cannot_be_read() {
        let failed = ReadError::Failed("them".to_owned(), "forbidden".to_owned());
        let why = explained(&pod(|_| {}), Some(&Err(failed.clone())), None, Err(failed));
        assert!(
            why.causes.iter().all(|cause| cause.severity == Severity::Unknown),
            "{why:?}"
        );
        assert_eq!(why.causes.len(), 2);
        assert!(why.end.contains("could not be read"), "{}", why.end);
    }
}
