//! The role of this agent, active or standby. Pure.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// The role of this agent, without its reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RoleName {
    /// It terminates the pods of this node.
    Active,
    /// It does not.
    #[default]
    Standby,
    /// It never does: it only compares its plans with the kubelet's results (`--mode observe`).
    Observing,
}

/// A [`StandbyReason`] without its details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StandbyReasonName {
    /// The kubelet of this node works.
    KubeletAlive,
    /// A kubelet process exists, but has neither answered at healthz nor renewed the Lease so far.
    KubeletStarted,
    /// A kubelet process exists all the time, but healthz does not answer and the Lease is not renewed.
    KubeletUnresponsive,
    /// There is no kubelet process here, but healthz answers or the Lease is renewed.
    KubeletElsewhere,
    /// The kubelet is down, but not long enough.
    TakeoverPending,
    /// The node has just booted.
    NodeBooting,
    /// The agent was active before its restart, and no probe has yet shown whether a kubelet ran meanwhile.
    AgentRestarted,
    /// A probe fails.
    KubeletUnknown,
}

/// Why the agent is on standby.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StandbyReason {
    /// The kubelet of this node works.
    Working,
    /// The kubelet answers at healthz, but its Lease is not renewed.
    NotRenewing,
    /// A kubelet process exists, which has neither answered at healthz nor renewed the Lease so far.
    Started,
    /// The same kubelet process exists all the time, but healthz does not answer and the Lease is not renewed.
    Unresponsive,
    /// There is no kubelet process, but healthz answers or the Lease is renewed.
    Unseen,
    /// The kubelet is down, but not long enough.
    NotYet(Duration),
    /// The node has just booted.
    Booting,
    /// The agent was active before its restart, and no probe has yet shown whether a kubelet ran meanwhile.
    Resuming,
    /// A probe fails.
    Unknown(String),
}

// === impl StandbyReason ===

impl StandbyReason {
    /// Its name in `status` and metrics.
    pub fn name(&self) -> StandbyReasonName {
        match self {
            Self::Working | Self::NotRenewing => StandbyReasonName::KubeletAlive,
            Self::Started => StandbyReasonName::KubeletStarted,
            Self::Unresponsive => StandbyReasonName::KubeletUnresponsive,
            Self::Unseen => StandbyReasonName::KubeletElsewhere,
            Self::NotYet(_) => StandbyReasonName::TakeoverPending,
            Self::Booting => StandbyReasonName::NodeBooting,
            Self::Resuming => StandbyReasonName::AgentRestarted,
            Self::Unknown(_) => StandbyReasonName::KubeletUnknown,
        }
    }
}

impl fmt::Display for StandbyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRenewing => f.write_str(
                "the kubelet answers at healthz, but does not renew its Lease: the API server is unreachable or refuses it; this agent leaves its pods to it; see journalctl -u kubelet",
            ),
            Self::NotYet(left) => write!(f, "the kubelet is down; takeover in {} s if it stays down", left.as_secs()),
            Self::Unknown(what) => write!(f, "unknown {what}"),
            other => f.write_str(other.name().in_condition().1),
        }
    }
}

// === impl RoleName ===

impl RoleName {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Active, Self::Standby, Self::Observing];
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

// === impl StandbyReasonName ===

impl StandbyReasonName {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::KubeletAlive,
        Self::KubeletStarted,
        Self::KubeletUnresponsive,
        Self::KubeletElsewhere,
        Self::TakeoverPending,
        Self::NodeBooting,
        Self::AgentRestarted,
        Self::KubeletUnknown,
    ];

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

impl fmt::Display for StandbyReasonName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
