//! The Node's condition `PodTeardownActive`, which shows in the cluster whether this agent terminates the node's pods. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use serde_json::{Value, json};

use super::report::RoleReport;
use crate::model::{
    event::Reason,
    role::{RoleName, StandbyReasonName},
};

/// Type of the condition.
pub const CONDITION_TYPE: &str = "PodTeardownActive";
/// Reason of a stopped agent.
pub const AGENT_STOPPED: &str = "AgentStopped";

/// What the condition reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleCondition {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// In `CamelCase`.
    pub reason: &'static str,
    /// Message for the user.
    pub message: String,
}

// === impl RoleCondition ===

impl RoleCondition {
    /// The condition of an agent with this role (`None` with `--mode always`), and with this reason why it may not act. A user has
    /// `paused` it, or not. The message says why the kubelet does not work, if its unit shows that.
    pub fn new(role: Option<&RoleReport>, blocked: Option<&str>, paused: Option<&str>) -> Self {
        // A kubelet that starts again and again is one state: neither a start nor an exit of its process changes it.
        let is_failing = role.is_some_and(|role| role.between_starts_of().is_some());
        let (status, reason, mut message) = match role {
            Some(RoleReport { role: RoleName::Observing, message, .. }) => {
                let message = message.as_deref().unwrap_or("it touches nothing");
                ("False", "Observing", format!("pod-teardown only observes: {message}"))
            }
            Some(standby) if standby.role == RoleName::Standby && !is_failing => {
                let unprobed = ("KubeletUnknown", "the kubelet was not probed yet");
                let (reason, text) = standby.reason.map_or(unprobed, StandbyReasonName::in_condition);
                let expired = standby.message.as_deref().filter(|_| standby.certificate_expired.is_some());
                let text = expired.unwrap_or(text);
                ("False", reason, format!("pod-teardown is on standby: {text}"))
            }
            role => match (paused.or(blocked.filter(|_| !is_failing)), role) {
                (Some(why), _) => ("False", "Blocked", format!("pod-teardown may not act: {why}")),
                (None, Some(_)) if is_failing => (
                    "True",
                    "KubeletFailing",
                    "the kubelet starts again and again and never works: pod-teardown terminates the deleted pods of this node \
                     between its starts"
                        .to_owned(),
                ),
                (None, Some(_)) => (
                    "True",
                    "KubeletDown",
                    "the kubelet is down: pod-teardown terminates the deleted pods of this node".to_owned(),
                ),
                (None, None) => (
                    "True",
                    "NoKubelet",
                    "this node has no kubelet: pod-teardown terminates its deleted pods".to_owned(),
                ),
            },
        };
        if let Some(unit) = role.and_then(|role| role.kubelet_unit.as_ref()) {
            message = format!("{message}; {}", unit.summary());
        }
        Self {
            status,
            reason,
            message,
        }
    }

    /// The condition of an agent that is being stopped.
    pub fn stopped() -> Self {
        Self {
            status: "Unknown",
            reason: AGENT_STOPPED,
            message: "pod-teardown was stopped".to_owned(),
        }
    }

    /// A strategic merge patch of the Node's status, with the Node's UID as precondition.
    pub fn patch(&self, node: &Node, now: Timestamp) -> Value {
        let mut condition = json!({
            "type": CONDITION_TYPE,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastHeartbeatTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        });
        // A patch without the time keeps the one in the API.
        if condition_of(node).is_none_or(|old| old.status != self.status) {
            condition["lastTransitionTime"] = condition["lastHeartbeatTime"].clone();
        }
        json!({ "metadata": { "uid": node.metadata.uid }, "status": { "conditions": [condition] } })
    }

    /// The event for a change to this condition, if it has one: reasons that pass by themselves have none.
    pub fn event(&self) -> Option<Reason> {
        event_of(self.status, self.reason)
    }
}

/// The condition in this Node.
pub fn condition_of(node: &Node) -> Option<&NodeCondition> {
    condition_of_type(node, CONDITION_TYPE)
}

/// The condition of this type in this Node.
pub fn condition_of_type<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// The event that a condition in the API has led to.
pub fn reported_event(node: &Node) -> Option<Reason> {
    let condition = condition_of(node)?;
    event_of(&condition.status, condition.reason.as_deref()?)
}

fn event_of(status: &str, reason: &str) -> Option<Reason> {
    match (status, reason) {
        ("True", "KubeletFailing") => Some(Reason::KubeletFailing),
        ("True", _) => Some(Reason::TeardownActive),
        ("False", "Observing") => Some(Reason::TeardownObserving),
        ("False", "KubeletAlive") => Some(Reason::TeardownStandby),
        ("False", "KubeletUnresponsive") => Some(Reason::KubeletUnresponsive),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantArray as _;

    use super::*;
    use crate::{
        handover::report::FailingKubelet,
        model::kubelet_unit::{KubeletUnit, UnitExit},
    };

    fn role(role: RoleName, reason: Option<StandbyReasonName>) -> RoleReport {
        RoleReport {
            role,
            reason,
            ..RoleReport::default()
        }
    }

    #[test]
    fn condition_is_true_only_while_the_agent_may_act() {
        let active = role(RoleName::Active, None);
        let alive = role(RoleName::Standby, Some(StandbyReasonName::KubeletAlive));
        let observing = role(RoleName::Observing, None);
        let unprobed = role(RoleName::Standby, None);
        let failing = |name, reason| RoleReport {
            failing: Some(FailingKubelet::default()),
            ..role(name, reason)
        };
        let between = failing(RoleName::Active, None);
        let started = failing(RoleName::Standby, Some(StandbyReasonName::KubeletStarted));
        let ended = failing(RoleName::Standby, Some(StandbyReasonName::TakeoverPending));
        let hangs = failing(RoleName::Standby, Some(StandbyReasonName::KubeletUnresponsive));
        for (role, blocked, status, reason) in [
            (Some(&active), None, "True", "KubeletDown"),
            (Some(&active), Some("paused"), "False", "Blocked"),
            (Some(&alive), Some("standby"), "False", "KubeletAlive"),
            (Some(&between), None, "True", "KubeletFailing"),
            (Some(&between), Some("a kubelet runs"), "True", "KubeletFailing"),
            (Some(&started), Some("a kubelet runs"), "True", "KubeletFailing"),
            (Some(&ended), Some("standby"), "True", "KubeletFailing"),
            (Some(&hangs), Some("a kubelet runs"), "False", "KubeletUnresponsive"),
            (Some(&observing), Some("observes"), "False", "Observing"),
            (Some(&unprobed), None, "False", "KubeletUnknown"),
            (None, None, "True", "NoKubelet"),
            (None, Some("a kubelet runs"), "False", "Blocked"),
        ] {
            let condition = RoleCondition::new(role, blocked, None);
            assert_eq!((condition.status, condition.reason), (status, reason));
        }
        for (role, reason) in [
            (Some(&active), "Blocked"),
            (Some(&between), "Blocked"),
            (Some(&ended), "Blocked"),
            (None, "Blocked"),
            (Some(&alive), "KubeletAlive"),
            (Some(&observing), "Observing"),
        ] {
            assert_eq!(
                RoleCondition::new(role, None, Some("paused")).reason,
                reason,
                "{role:?}"
            );
        }
    }

    #[test]
    fn message_says_why_the_kubelet_fails_and_stays_the_same_while_it_restarts() {
        let message = |role: RoleName, restarts, seconds| {
            let role = RoleReport {
                role,
                kubelet_unit: Some(KubeletUnit {
                    unit: "kubelet.service".to_owned(),
                    active_state: "activating".to_owned(),
                    sub_state: "auto-restart".to_owned(),
                    exit: Some(UnitExit::Code(1)),
                    restarts,
                    since: Timestamp::from_second(seconds).ok(),
                    last_error: Some("failed to parse kubelet flag: unknown flag: --x".to_owned()),
                    ..KubeletUnit::default()
                }),
                ..RoleReport::default()
            };
            RoleCondition::new(Some(&role), None, None).message
        };
        for &role in RoleName::VARIANTS {
            let first = message(role, 1, 10);
            let reason = "; kubelet.service fails and is restarted each time: exit code 1; last error: failed to parse kubelet flag: unknown flag: --x";
            assert!(first.ends_with(reason), "{first}");
            assert_eq!(first, message(role, 2, 20));
        }
    }

    #[test]
    fn each_standby_reason_has_its_own_reason_in_camel_case() {
        for reason in StandbyReasonName::VARIANTS {
            assert_eq!(reason.in_condition().0, format!("{reason:?}"));
        }
    }

    #[test]
    fn transition_time_changes_only_with_the_status() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let node = |status: &str| -> Node {
            let condition = json!({ "type": CONDITION_TYPE, "status": status, "reason": "KubeletAlive" });
            serde_json::from_value(json!({
                "metadata": { "uid": "n1" },
                "status": { "conditions": [{ "type": "Ready", "status": "True" }, condition] },
            }))
            .unwrap()
        };
        let active = RoleCondition::new(Some(&role(RoleName::Active, None)), None, None);
        let now = at("2026-01-02T03:04:05.678Z");
        let changed = active.patch(&node("False"), now);
        assert_eq!(changed["metadata"]["uid"], "n1");
        let condition = &changed["status"]["conditions"][0];
        assert_eq!(condition["lastTransitionTime"], "2026-01-02T03:04:05Z");
        let same = active.patch(&node("True"), now);
        let condition = &same["status"]["conditions"][0];
        assert_eq!(condition["lastHeartbeatTime"], "2026-01-02T03:04:05Z");
        assert_eq!(condition.get("lastTransitionTime"), None);
        assert!(active.patch(&Node::default(), now)["status"]["conditions"][0]["lastTransitionTime"].is_string());
    }

    #[test]
    fn reasons_that_pass_by_themselves_have_no_event() {
        let event = |reason| RoleCondition::new(Some(&role(RoleName::Standby, Some(reason))), None, None).event();
        assert_eq!(event(StandbyReasonName::TakeoverPending), None);
        assert_eq!(event(StandbyReasonName::KubeletAlive), Some(Reason::TeardownStandby));
        assert_eq!(
            event(StandbyReasonName::KubeletUnresponsive),
            Some(Reason::KubeletUnresponsive)
        );
        assert_eq!(RoleCondition::stopped().event(), None);
        assert_eq!(
            RoleCondition::new(None, None, None).event(),
            Some(Reason::TeardownActive)
        );
    }
}
