//! `kubectl teardown why POD`: why a pod still exists, as far as the API shows it. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Node, Pod};

use super::node::{AgentState, AgentView, KubeletView};
use crate::{
    clock::between,
    explanation::{
        Explanation, ObjectFacts,
        cause::{Cause, CauseKind, Severity},
    },
    model::{
        event::Reason,
        pod::is_terminal_phase,
        termination::{GraceStart, Terminator},
    },
    ops::output::age_since,
    teardown::diagnosis::{conclusion, removed_by},
    words::{age, escape_control_chars},
};

/// Source of the agent's events.
const AGENT: &str = "pod-teardown";
/// Reasons of the kubelet's events that a terminating pod can wait for; the agent uses the same.
const FAILURES: [&str; 3] = ["FailedKillPod", "FailedUnMount", "FailedPreStopHook"];
/// An event that is older than this may be about something that has passed.
const MAX_EVENT_AGE: Duration = Duration::from_secs(15 * 60);
/// A kubelet renews its Lease every 10 s. Most of this time allows for the difference of two clocks.
const MAX_LEASE_AGE: Duration = Duration::from_secs(2 * 60);

/// The objects around a pod.
#[derive(Debug)]
pub struct Surroundings {
    /// `None` if no Node is assigned, `Ok(None)` if its Node does not exist, `Err` with the reason if it cannot be read.
    pub node: Option<Result<Option<Node>, String>>,
    /// When the Lease of the Node was renewed; `None` if unknown.
    pub lease_renewed: Option<Timestamp>,
    /// `Err` with the reason if they cannot be read.
    pub events: Result<Vec<Event>, String>,
}

/// The fields of a pod that count here.
struct PodView<'a> {
    pod: &'a Pod,
    node: &'a str,
    phase: &'a str,
    /// Containers that run, as the API shows them.
    running: Vec<&'a str>,
}

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
    let (pod, node) = (PodView::of(pod), NodeView::of(around, now));
    let mut causes = match &pod.pod.metadata.deletion_timestamp {
        None => vec![(Severity::Info, pod.not_deleted())],
        Some(expires) => {
            let causes = [
                causes_of_node(&pod, &node, around),
                causes_of_events(&around.events, now),
                grace_period(&pod, expires.0, now),
                finalizers(&pod, around.node.is_none()),
            ];
            causes.concat()
        }
    };
    causes.sort_by_key(|(severity, _)| *severity);
    let cause = |(severity, kind)| Cause::new(severity, kind, node.terminator);
    let causes: Vec<Cause> = causes.into_iter().map(cause).collect();
    let mut objects = vec![pod.facts(now)];
    if let Some(Ok(Some(object))) = &around.node {
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        let facts = [format!("kubelet: {}", node.kubelet), format!("agent: {}", node.agent)];
        objects.push(facts_of(&format!("Node {}", pod.node), uid, &facts));
    }
    let more = match pod.node {
        "" => String::new(),
        node => format!(
            " Containers, mounts and cgroups are seen on its node only: run pod-teardown why {} on {node}.",
            pod.name()
        ),
    };
    Explanation {
        objects,
        end: escape_control_chars(&format!("{}{more}", conclusion(&causes))),
        causes,
        is_gone: false,
    }
}

fn causes_of_node(pod: &PodView<'_>, view: &NodeView, around: &Surroundings) -> Vec<(Severity, CauseKind)> {
    let node = pod.node.to_owned();
    let (kubelet, agent) = (view.kubelet.clone(), view.agent.clone());
    let cause = match &around.node {
        Some(Ok(None)) => (Severity::Blocking, CauseKind::NodeMissing { node }),
        Some(Err(why)) => unknown("its Node", why),
        Some(Ok(Some(_))) if view.terminator == Terminator::NoProcess => {
            let kind = match view.is_kubelet_unknown {
                true => CauseKind::NodeUnreachable { node, kubelet, agent },
                false => CauseKind::NodeNotReady { node, kubelet, agent },
            };
            (Severity::Blocking, kind)
        }
        _ => return Vec::new(),
    };
    vec![cause]
}

/// The last event of each reason that is not too old, the latest first.
fn causes_of_events(events: &Result<Vec<Event>, String>, now: Timestamp) -> Vec<(Severity, CauseKind)> {
    let events = match events {
        Ok(events) => events,
        Err(why) => return vec![unknown("its events", why)],
    };
    let is_failure =
        |event: &&Event| is_blocked_pod(event) || event.reason.as_deref().is_some_and(|it| FAILURES.contains(&it));
    let mut failures: Vec<&Event> = events.iter().filter(is_failure).collect();
    failures.retain(|event| between(last(event), now) <= MAX_EVENT_AGE);
    failures.sort_by_key(|event| std::cmp::Reverse(last(event)));
    let mut seen = Vec::new();
    failures.retain(|event| {
        let is_first = !seen.contains(&&event.reason);
        seen.push(&event.reason);
        is_first
    });
    let cause = |event: &Event| {
        let kind = CauseKind::Reported {
            component: component(event).to_owned(),
            reason: event.reason.clone().unwrap_or_default(),
            text: event.message.clone().unwrap_or_default(),
            ago_seconds: between(last(event), now).as_secs(),
        };
        let severity = if is_blocked_pod(event) {
            Severity::Blocking
        } else {
            Severity::Waiting
        };
        (severity, kind)
    };
    failures.into_iter().map(cause).collect()
}

fn grace_period(pod: &PodView<'_>, expires: Timestamp, now: Timestamp) -> Vec<(Severity, CauseKind)> {
    let left = between(now, expires);
    if left.is_zero() {
        return Vec::new();
    }
    let total = pod.pod.metadata.deletion_grace_period_seconds;
    let kind = CauseKind::GracePeriod {
        left_seconds: left.as_secs(),
        total_seconds: total.and_then(|total| u64::try_from(total).ok()),
        counted_from: GraceStart::DeleteRequest,
    };
    vec![(Severity::Waiting, kind)]
}

fn finalizers(pod: &PodView<'_>, has_no_node: bool) -> Vec<(Severity, CauseKind)> {
    // The object goes only after the node is done, so finalizers hold it alone once it has a terminal phase.
    let is_done = has_no_node || is_terminal_phase(pod.phase) && pod.running.is_empty();
    let severity = if is_done { Severity::Blocking } else { Severity::Later };
    let finalizers = pod.pod.metadata.finalizers.iter().flatten();
    let cause = |finalizer: &String| CauseKind::Finalizer {
        finalizer: finalizer.clone(),
        removed_by: removed_by(finalizer),
    };
    finalizers.map(|finalizer| (severity, cause(finalizer))).collect()
}

fn unknown(what: &str, why: &str) -> (Severity, CauseKind) {
    let kind = CauseKind::Unknown {
        what: what.to_owned(),
        why: why.to_owned(),
    };
    (Severity::Unknown, kind)
}

/// Whether an agent sent the event because a pod does not terminate.
pub(super) fn is_blocked_pod(event: &Event) -> bool {
    component(event) == AGENT && event.reason.as_deref() == Some(Reason::TeardownBlocked.as_str())
}

fn component(event: &Event) -> &str {
    let source = event.source.as_ref().and_then(|source| source.component.as_deref());
    source.unwrap_or_default()
}

/// When it happened last; newer events have only `eventTime`.
fn last(event: &Event) -> Timestamp {
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    last.or(event.event_time.as_ref().map(|time| time.0))
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

fn facts_of(object: &str, uid: &str, facts: &[String]) -> ObjectFacts {
    ObjectFacts {
        object: escape_control_chars(object),
        uid: escape_control_chars(uid),
        facts: facts.iter().map(|fact| escape_control_chars(fact)).collect(),
    }
}

// === impl PodView ===

impl<'a> PodView<'a> {
    fn of(pod: &'a Pod) -> Self {
        let status = pod.status.as_ref();
        let statuses = status
            .and_then(|status| status.container_statuses.as_deref())
            .unwrap_or_default();
        let is_running = |it: &&ContainerStatus| it.state.as_ref().is_some_and(|state| state.running.is_some());
        Self {
            pod,
            node: pod
                .spec
                .as_ref()
                .and_then(|spec| spec.node_name.as_deref())
                .unwrap_or_default(),
            phase: status.and_then(|status| status.phase.as_deref()).unwrap_or_default(),
            running: statuses.iter().filter(is_running).map(|it| &*it.name).collect(),
        }
    }

    fn name(&self) -> String {
        let [namespace, name] = [&self.pod.metadata.namespace, &self.pod.metadata.name];
        format!(
            "{}/{}",
            namespace.as_deref().unwrap_or_default(),
            name.as_deref().unwrap_or_default()
        )
    }

    fn not_deleted(&self) -> CauseKind {
        let phase = Some(self.phase.to_owned()).filter(|phase| !phase.is_empty());
        match is_terminal_phase(self.phase) {
            true => CauseKind::EndedNotDeleted { phase, reason: None },
            false => CauseKind::NotDeleted { phase, running: None },
        }
    }

    fn facts(&self, now: Timestamp) -> ObjectFacts {
        let mut facts = Vec::new();
        if let Some(expires) = &self.pod.metadata.deletion_timestamp {
            let (ago, left) = (age_since(expires.0, now), between(now, expires.0));
            facts.push(match left.is_zero() {
                true => format!("is being deleted; its grace period expired {ago} ago"),
                false => format!("is being deleted; its grace period expires in {}", age(left)),
            });
        }
        if !self.phase.is_empty() {
            facts.push(format!("phase {}", self.phase));
        }
        if !self.running.is_empty() {
            facts.push(format!(
                "running containers, as last reported: {}",
                self.running.join(", ")
            ));
        }
        facts.push(match self.node {
            "" => "is not scheduled to a node".to_owned(),
            node => format!("node {node}"),
        });
        let uid = self.pod.metadata.uid.as_deref().unwrap_or_default();
        facts_of(&format!("Pod {}", self.name()), uid, &facts)
    }
}

// === impl NodeView ===

impl NodeView {
    fn of(around: &Surroundings, now: Timestamp) -> Self {
        let node = around.node.as_ref().and_then(|node| node.as_ref().ok()?.as_ref());
        let kubelet = node.and_then(KubeletView::of);
        let agent = node.and_then(|node| AgentView::of(node, now));
        // kube-controller-manager sets the condition Ready to Unknown, but only while it runs.
        let is_lease_old = around
            .lease_renewed
            .is_some_and(|renewed| between(renewed, now) > MAX_LEASE_AGE);
        let word = kubelet.as_ref().map_or("Unknown", KubeletView::word);
        let is_kubelet_unknown = is_lease_old || word == "Unknown";
        let is_agent_active = agent.as_ref().is_some_and(|agent| agent.state == AgentState::Active);
        Self {
            kubelet: KubeletView::line(kubelet.as_ref(), around.lease_renewed, now),
            agent: AgentView::line(agent.as_ref(), now),
            terminator: match (is_agent_active, !is_kubelet_unknown && word == "Ready") {
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
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn node(ready: &str, active: Option<(&str, &str)>) -> Result<Option<Node>, String> {
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

    fn kinds(pod: &Pod, node: Option<&Result<Option<Node>, String>>, events: Value) -> Vec<(Severity, String)> {
        let events = Ok(serde_json::from_value(events).unwrap());
        kinds_with_lease(pod, node, None, events)
    }

    fn explained(
        pod: &Pod,
        node: Option<&Result<Option<Node>, String>>,
        lease_renewed: Option<&str>,
        events: Result<Vec<Event>, String>,
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
        node: Option<&Result<Option<Node>, String>>,
        lease_renewed: Option<&str>,
        events: Result<Vec<Event>, String>,
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
        let why = explained(&pod(|_| {}), Some(&Ok(None)), None, Ok(Vec::new())).text();
        assert!(
            why.contains("BLOCKED") && why.contains("its Node n1 does not exist"),
            "{why}"
        );
    }

    #[test]
    fn nothing_is_concluded_from_what_cannot_be_read() {
        let (node, events) = (Err("forbidden".to_owned()), Err("forbidden".to_owned()));
        let why = explained(&pod(|_| {}), Some(&node), None, events);
        assert!(
            why.causes.iter().all(|cause| cause.severity == Severity::Unknown),
            "{why:?}"
        );
        assert_eq!(why.causes.len(), 2);
        assert!(why.end.contains("could not be read"), "{}", why.end);
    }
}
