//! Reasons of events.

use serde::Serialize;
use strum::Display;

/// Reason of an event, in the kubelet's spelling (kubelet: `pkg/kubelet/events/event.go`) where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Display)]
pub enum Reason {
    /// A container is being stopped.
    Killing,
    /// A preStop hook failed.
    FailedPreStopHook,
    /// Containers or sandboxes could not be stopped.
    FailedKillPod,
    /// Volumes could not be unmounted or removed.
    FailedUnMount,
    /// The runtime shows containers as running whose processes have exited.
    RuntimeStateMismatch,
    /// The runtime has not killed processes of the pod, and this agent kills them.
    ProcessesKilled,
    /// The termination of a pod is blocked.
    TeardownBlocked,
    /// This agent has become active on a Node.
    TeardownActive,
    /// The kubelet of a Node works, so this agent is on standby.
    TeardownStandby,
    /// This agent observes the pods of a Node, and touches nothing.
    TeardownObserving,
    /// The kubelet of a Node starts again and again and never works: this agent is active between its starts.
    KubeletFailing,
    /// The kubelet of a Node is unresponsive: nothing terminates its pods.
    KubeletUnresponsive,
    /// The termination of a driver pod no longer waits for the pods that need it.
    DriverHoldExceeded,
    /// A user has stopped the pod.
    Evicted,
    /// A stop request was canceled: a kubelet may run the pod again.
    StopRequestCanceled,
    /// The pod has exceeded `activeDeadlineSeconds`.
    DeadlineExceeded,
    /// A pod that a user has stopped does not terminate within its grace period.
    ExceededGracePeriod,
    /// An owner reference names an object of another namespace.
    OwnerRefInvalidNamespace,
    /// A foreground deletion waits for groups whose servers cannot be reached, or for kinds that cannot be read.
    ForegroundDeletionDelayed,
}

// === impl Reason ===

impl Reason {
    /// `Normal` or `Warning`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Killing
            | Self::DeadlineExceeded
            | Self::TeardownActive
            | Self::TeardownStandby
            | Self::TeardownObserving => "Normal",
            _ => "Warning",
        }
    }
}
