//! The role of this agent, active or standby. Pure.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use strum::{Display, EnumDiscriminants, VariantArray};

/// The role of this agent, without its reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, Display, VariantArray)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum RoleName {
    /// It terminates the pods of this node.
    Active,
    /// It does not.
    #[default]
    Standby,
    /// It never does: it only compares its plans with the kubelet's results (`--mode observe`).
    Observing,
}

/// Why the agent is on standby.
#[derive(Debug, Clone, PartialEq, Eq, EnumDiscriminants)]
#[strum_discriminants(
    name(StandbyReasonName),
    doc = "A [`StandbyReason`] without its details.",
    derive(Serialize, Deserialize, Display, VariantArray),
    cfg_attr(test, derive(schemars::JsonSchema)),
    serde(rename_all = "kebab-case"),
    strum(serialize_all = "kebab-case")
)]
pub enum StandbyReason {
    /// The kubelet of this node works.
    KubeletAlive {
        /// It answers at healthz, but does not renew its Lease.
        is_lease_overdue: bool,
    },
    /// A kubelet process exists, but has neither answered at healthz nor renewed the Lease so far.
    KubeletStarted,
    /// A kubelet process exists all the time, but healthz does not answer and the Lease is not renewed.
    KubeletUnresponsive,
    /// There is no kubelet process here, but healthz answers or the Lease is renewed.
    KubeletElsewhere,
    /// The kubelet is down, but not long enough.
    TakeoverPending(Duration),
    /// The node has just booted.
    NodeBooting,
    /// The agent was active before its restart, and no probe has yet shown whether a kubelet ran meanwhile.
    AgentRestarted,
    /// A probe fails.
    KubeletUnknown(String),
}

// === impl StandbyReason ===

impl fmt::Display for StandbyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KubeletAlive { is_lease_overdue: true } => f.write_str(
                "the kubelet answers at healthz, but does not renew its Lease: the API server is unreachable or refuses it; this agent leaves its pods to it; see journalctl -u kubelet",
            ),
            Self::TakeoverPending(left) => {
                write!(f, "the kubelet is down; takeover in {} s if it stays down", left.as_secs())
            }
            Self::KubeletUnknown(what) => write!(f, "unknown {what}"),
            other => f.write_str(StandbyReasonName::from(other).in_condition().1),
        }
    }
}

// === impl StandbyReasonName ===

impl StandbyReasonName {
    /// The reason and the message in the Node's condition. The message has no duration: a condition is not written each second.
    pub fn in_condition(self) -> (&'static str, &'static str) {
        match self {
            Self::KubeletAlive => ("KubeletAlive", "the kubelet works"),
            Self::KubeletStarted => (
                "KubeletStarted",
                "a kubelet process exists, which has neither answered at healthz nor renewed its Lease so far",
            ),
            Self::KubeletUnresponsive => (
                "KubeletUnresponsive",
                "the kubelet is unresponsive: its process runs, but healthz does not answer and its Lease is not renewed; restart \
                 it or stop it; no pod is terminated meanwhile",
            ),
            Self::KubeletElsewhere => (
                "KubeletElsewhere",
                "there is no kubelet process on this node, but healthz answers or the Lease is renewed: is the kubelet in another \
                 PID namespace, or on another machine of this name?",
            ),
            Self::TakeoverPending => ("TakeoverPending", "the kubelet is down; takeover if it stays down"),
            Self::NodeBooting => ("NodeBooting", "the node has just booted; its kubelet has time to start"),
            Self::AgentRestarted => (
                "AgentRestarted",
                "this agent was active before its restart, and continues once the probes show that no kubelet has run meanwhile",
            ),
            Self::KubeletUnknown => ("KubeletUnknown", "it is unknown whether a kubelet works"),
        }
    }
}
