//! `kubectl teardown why POD`: why a pod still exists, as far as the API shows it. Pure.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    node::{agent_line, kubelet_line},
    objects::{AgentState, EventObject, NodeObject, PodObject},
};
use crate::{
    clock::between,
    explanation::{
        Explanation, ObjectFacts,
        cause::{Cause, CauseKind, Severity},
    },
    model::termination::{GraceStart, Terminator},
    ops::output::age_since,
    teardown::diagnosis::{conclusion, removed_by},
    words::{age, escape_control_chars},
};

/// Reasons of the kubelet's events that a terminating pod can wait for; the agent uses the same.
const FAILURES: [&str; 3] = ["FailedKillPod", "FailedUnMount", "FailedPreStopHook"];
/// An event that is older than this may be about something that has passed.
const MAX_EVENT_AGE: Duration = Duration::from_secs(15 * 60);
/// A kubelet renews its Lease every 10 s. Most of this time allows for the difference of two clocks.
const MAX_LEASE_AGE: Duration = Duration::from_secs(2 * 60);

/// Explains a pod by its object and the objects around it.
///
/// - `node`: `None` if no Node is assigned, `Ok(None)` if its Node does not exist, `Err` with the reason if it cannot be read.
/// - `lease_renewed`: `None` if unknown.
/// - `events`: `Err` with the reason if they cannot be read.
pub fn explain(
    pod: &PodObject,
    node: Option<&Result<Option<NodeObject>, String>>,
    lease_renewed: Option<Timestamp>,
    events: &Result<Vec<EventObject>, String>,
    now: Timestamp,
) -> Explanation {
    let mut causes = Vec::new();
    let (kubelet, agent) = match node {
        Some(Ok(Some(node))) => (node.kubelet(), node.agent(now)),
        _ => (None, None),
    };
    // kube-controller-manager sets the condition Ready to Unknown, but only while it runs.
    let is_lease_old = lease_renewed.is_some_and(|renewed| between(renewed, now) > MAX_LEASE_AGE);
    let is_kubelet_unknown = is_lease_old || kubelet.as_ref().is_none_or(|kubelet| !kubelet.has_recent_report());
    let is_kubelet_ready = !is_kubelet_unknown && kubelet.as_ref().is_some_and(|kubelet| kubelet.is_ready());
    let kubelet_line = kubelet_line(kubelet.as_ref(), lease_renewed, now);
    let is_agent_active = agent.as_ref().is_some_and(|agent| agent.state == AgentState::Active);
    let terminator = match (is_agent_active, is_kubelet_ready) {
        (true, _) => Terminator::Agent,
        (false, true) => Terminator::Kubelet,
        (false, false) => Terminator::NoProcess,
    };
    let mut add = |severity, kind| causes.push(Cause::new(severity, kind, terminator));
    let unknown = |what: &str, why: &str| CauseKind::Unknown {
        what: what.to_owned(),
        why: why.to_owned(),
    };
    match pod.metadata.deletion_timestamp {
        None => {
            let phase = Some(pod.status.phase.clone()).filter(|phase| !phase.is_empty());
            let kind = match pod.has_terminal_phase() {
                true => CauseKind::EndedNotDeleted { phase, reason: None },
                false => CauseKind::NotDeleted { phase, running: None },
            };
            add(Severity::Info, kind);
        }
        Some(expires) => {
            match node {
                Some(Ok(None)) => {
                    let node = pod.spec.node_name.clone();
                    add(Severity::Blocking, CauseKind::NodeMissing { node });
                }
                Some(Ok(Some(_))) if terminator == Terminator::NoProcess => {
                    let node = pod.spec.node_name.clone();
                    let (kubelet, agent) = (kubelet_line.clone(), agent_line(agent.as_ref(), now));
                    let kind = match is_kubelet_unknown {
                        true => CauseKind::NodeUnreachable { node, kubelet, agent },
                        false => CauseKind::NodeNotReady { node, kubelet, agent },
                    };
                    add(Severity::Blocking, kind);
                }
                Some(Err(why)) => add(Severity::Unknown, unknown("its Node", why)),
                _ => {}
            }
            match events {
                Err(why) => add(Severity::Unknown, unknown("its events", why)),
                Ok(events) => {
                    for event in failures(events, now) {
                        let kind = CauseKind::Reported {
                            component: event.source.component.clone(),
                            reason: event.reason.clone(),
                            text: event.message.clone(),
                            ago_seconds: between(event.last(), now).as_secs(),
                        };
                        add(
                            if event.is_blocked_pod() {
                                Severity::Blocking
                            } else {
                                Severity::Waiting
                            },
                            kind,
                        );
                    }
                }
            }
            let left = between(now, expires);
            if !left.is_zero() {
                let kind = CauseKind::GracePeriod {
                    left_seconds: left.as_secs(),
                    total_seconds: pod.metadata.deletion_grace_period_seconds,
                    counted_from: GraceStart::DeleteRequest,
                };
                add(Severity::Waiting, kind);
            }
            // The object goes only after the node is done, so finalizers hold it alone once it has a terminal phase.
            let is_done = node.is_none() || pod.has_terminal_phase() && pod.running().is_empty();
            for finalizer in &pod.metadata.finalizers {
                let kind = CauseKind::Finalizer {
                    finalizer: finalizer.clone(),
                    removed_by: removed_by(finalizer),
                };
                add(if is_done { Severity::Blocking } else { Severity::Later }, kind);
            }
        }
    }
    causes.sort_by_key(|cause| cause.severity);
    let mut objects = vec![facts_of_pod(pod, now)];
    if let Some(Ok(Some(node))) = node {
        let facts = vec![
            format!("kubelet: {kubelet_line}"),
            format!("agent: {}", agent_line(agent.as_ref(), now)),
        ];
        objects.push(facts_of(
            &format!("Node {}", node.metadata.name),
            &node.metadata.uid,
            &facts,
        ));
    }
    let more = match pod.spec.node_name.as_str() {
        "" => String::new(),
        node => format!(
            " Containers, mounts and cgroups are seen on its node only: run pod-teardown why {}/{} on {node}.",
            pod.metadata.namespace, pod.metadata.name
        ),
    };
    Explanation {
        objects,
        end: escape_control_chars(&format!("{}{more}", conclusion(&causes))),
        causes,
        is_gone: false,
    }
}

/// The last event of each reason that is not too old, the latest first.
fn failures(events: &[EventObject], now: Timestamp) -> Vec<&EventObject> {
    let is_failure = |event: &&EventObject| event.is_blocked_pod() || FAILURES.contains(&&*event.reason);
    let mut recent: Vec<&EventObject> = events
        .iter()
        .filter(is_failure)
        .filter(|event| between(event.last(), now) <= MAX_EVENT_AGE)
        .collect();
    recent.sort_by_key(|event| std::cmp::Reverse(event.last()));
    let mut seen = Vec::new();
    recent.retain(|event| {
        let is_first = !seen.contains(&&event.reason);
        seen.push(&event.reason);
        is_first
    });
    recent
}

fn facts_of_pod(pod: &PodObject, now: Timestamp) -> ObjectFacts {
    let mut facts = Vec::new();
    if let Some(expires) = pod.metadata.deletion_timestamp {
        let left = between(now, expires);
        facts.push(match left.is_zero() {
            true => format!(
                "is being deleted; its grace period expired {} ago",
                age_since(expires, now)
            ),
            false => format!("is being deleted; its grace period expires in {}", age(left)),
        });
    }
    if !pod.status.phase.is_empty() {
        facts.push(format!("phase {}", pod.status.phase));
    }
    let running = pod.running();
    if !running.is_empty() {
        facts.push(format!("running containers, as last reported: {}", running.join(", ")));
    }
    match pod.spec.node_name.as_str() {
        "" => facts.push("is not scheduled to a node".to_owned()),
        node => facts.push(format!("node {node}")),
    }
    let meta = &pod.metadata;
    facts_of(&format!("Pod {}/{}", meta.namespace, meta.name), &meta.uid, &facts)
}

fn facts_of(object: &str, uid: &str, facts: &[String]) -> ObjectFacts {
    ObjectFacts {
        object: escape_control_chars(object),
        uid: escape_control_chars(uid),
        facts: facts.iter().map(|fact| escape_control_chars(fact)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn node(ready: &str, active: Option<(&str, &str)>) -> Result<Option<NodeObject>, String> {
        let mut conditions = vec![json!({ "type": "Ready", "status": ready })];
        conditions.extend(active.map(|(status, reason)| {
            json!({ "type": "PodTeardownActive", "status": status, "reason": reason, "lastHeartbeatTime": NOW })
        }));
        Ok(
            serde_json::from_value(json!({ "metadata": { "name": "n1" }, "status": { "conditions": conditions } }))
                .unwrap(),
        )
    }

    fn pod(change: impl FnOnce(&mut Value)) -> PodObject {
        let mut pod = json!({
            "metadata": { "namespace": "d", "name": "p", "uid": "u", "deletionTimestamp": "2026-01-01T00:59:00Z" },
            "spec": { "nodeName": "n1" },
            "status": { "phase": "Running", "containerStatuses": [{ "name": "main", "state": { "running": {} } }] },
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn kinds(
        pod: &PodObject,
        node: Option<&Result<Option<NodeObject>, String>>,
        events: Value,
    ) -> Vec<(Severity, String)> {
        let events = Ok(serde_json::from_value(events).unwrap());
        kinds_with_lease(pod, node, None, &events)
    }

    fn kinds_with_lease(
        pod: &PodObject,
        node: Option<&Result<Option<NodeObject>, String>>,
        lease_renewed: Option<&str>,
        events: &Result<Vec<EventObject>, String>,
    ) -> Vec<(Severity, String)> {
        let lease_renewed = lease_renewed.map(|at| at.parse().unwrap());
        let causes = explain(pod, node, lease_renewed, events, NOW.parse().unwrap()).causes;
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
        let end = explain(&plain, Some(&alive), None, &failed, NOW.parse().unwrap()).end;
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
            let causes = kinds_with_lease(&pod(|_| {}), Some(&node(ready, agent)), lease, &Ok(Vec::new()));
            let found: Vec<&str> = causes.iter().map(|(_, kind)| kind.as_str()).collect();
            assert_eq!(found, Vec::from_iter(expected), "{ready} {agent:?} {lease:?}");
        }
        let why = explain(
            &pod(|_| {}),
            Some(&Ok(None)),
            None,
            &Ok(Vec::new()),
            NOW.parse().unwrap(),
        )
        .text();
        assert!(
            why.contains("BLOCKED") && why.contains("its Node n1 does not exist"),
            "{why}"
        );
    }

    #[test]
    fn nothing_is_concluded_from_what_cannot_be_read() {
        let (node, events) = (Err("forbidden".to_owned()), Err("forbidden".to_owned()));
        let why = explain(&pod(|_| {}), Some(&node), None, &events, NOW.parse().unwrap());
        assert!(
            why.causes.iter().all(|cause| cause.severity == Severity::Unknown),
            "{why:?}"
        );
        assert_eq!(why.causes.len(), 2);
        assert!(why.end.contains("could not be read"), "{}", why.end);
    }
}
