//! Why this agent touches nothing. Pure.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::{pause::Paused, problems, role::StandbyReason};
use crate::words::age;

/// Why no effect is allowed, or nothing new may begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Blocked {
    /// The Node is not known to be the recorded one, of this machine.
    Identity(Box<NodeMismatch>),
    /// The agent only observes.
    OnlyObserves,
    /// A kubelet runs on this node.
    Kubelet {
        /// Its process.
        process: String,
        /// How it fails, if it does not work.
        fault: Option<KubeletFault>,
    },
    /// Whether a kubelet runs is not known.
    KubeletUnknown(String),
    /// The node was handed over to its kubelet, which has this time left to start.
    HandedOver(Duration),
    /// The agent is on standby.
    Standby(Box<StandbyReason>),
    /// The node is being handed over to its kubelet: nothing new may begin.
    Handover,
    /// A user has paused the agent: nothing new may begin.
    Paused(Box<Paused>),
    /// The collector of this agent is on standby.
    CollectorStandby(String),
    /// Only reads are allowed here.
    ReadOnly,
    /// The program that embeds this library says so.
    Other(String),
}

/// Why the agent may not act, without details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum BlockedKind {
    /// The Node is not known to be the recorded one, of this machine.
    Identity,
    /// The agent only observes.
    OnlyObserves,
    /// A kubelet runs on this node, or that is not known.
    Kubelet,
    /// The node is being or was handed over to its kubelet.
    Handover,
    /// The agent is on standby.
    Standby,
    /// A user has paused the agent.
    Paused,
    /// Any other reason.
    Other,
}

/// How a kubelet fails whose process exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KubeletFault {
    /// The same process does nothing.
    Unresponsive,
    /// It starts again and again and never works.
    Failing {
        /// Number of starts.
        starts: u32,
        /// Time since the first.
        period: Duration,
    },
}

/// Why the Node is not known to be the recorded one, of this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct NodeMismatch {
    why: String,
    /// UID of the Node, if only that differs from the recorded one. A user can approve it.
    pub other_uid: Option<String>,
}

// === impl Blocked ===

impl Blocked {
    /// Its kind.
    pub fn kind(&self) -> BlockedKind {
        match self {
            Self::Identity(_) => BlockedKind::Identity,
            Self::OnlyObserves => BlockedKind::OnlyObserves,
            Self::Kubelet { .. } | Self::KubeletUnknown(_) => BlockedKind::Kubelet,
            Self::HandedOver(_) | Self::Handover => BlockedKind::Handover,
            Self::Standby(_) => BlockedKind::Standby,
            Self::Paused(_) => BlockedKind::Paused,
            Self::CollectorStandby(_) | Self::ReadOnly | Self::Other(_) => BlockedKind::Other,
        }
    }

    /// Whether a kubelet runs, which terminates all pods itself.
    pub fn is_kubelet(&self) -> bool {
        matches!(self, Self::Kubelet { .. })
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Identity(mismatch) => mismatch.fmt(f),
            Self::OnlyObserves => f.write_str(
                "this agent only observes (--mode observe, the default) and touches nothing: set POD_TEARDOWN_MODE=auto in \
                 /etc/default/pod-teardown, and restart the service",
            ),
            Self::Kubelet { process, fault } => match fault {
                None => write!(f, "a kubelet runs on this node {process}"),
                Some(KubeletFault::Unresponsive) => write!(
                    f,
                    "the kubelet of this node is unresponsive; repair it or stop it {process}"
                ),
                Some(failing @ KubeletFault::Failing { .. }) => write!(
                    f,
                    "the kubelet of this node starts again and again and never works: {failing}; this agent continues when that \
                     process exits {process}"
                ),
            },
            Self::KubeletUnknown(why) => write!(f, "whether a kubelet runs on this node is not known: {why}"),
            Self::HandedOver(left) => write!(
                f,
                "the node was handed over to its kubelet, which has {} s to start",
                left.as_secs() + 1
            ),
            Self::Standby(reason) => write!(f, "standby: {reason}"),
            Self::Handover => f.write_str("the node is being handed over to its kubelet"),
            Self::Paused(paused) => f.write_str(&paused.why()),
            Self::CollectorStandby(why) => write!(f, "the collector of this agent is on standby: {why}"),
            Self::ReadOnly => f.write_str("only reads are allowed here"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

// === impl KubeletFault ===

impl fmt::Display for KubeletFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unresponsive => f.write_str("unresponsive"),
            Self::Failing { starts, period } => write!(f, "{starts} starts in {}, none worked", age(*period)),
        }
    }
}

// === impl NodeMismatch ===

impl NodeMismatch {
    /// A mismatch that cannot be approved.
    pub fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            other_uid: None,
        }
    }

    /// Node `node` has this UID in place of the recorded one.
    pub fn other_uid(node: &str, uid: &str, recorded: &str) -> Self {
        Self {
            other_uid: Some(uid.to_owned()),
            ..Self::new(problems::other_node(node, uid, recorded).to_string())
        }
    }
}
