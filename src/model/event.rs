//! Reasons of events.

/// Reason of an event, in the kubelet's spelling (kubelet: `pkg/kubelet/events/event.go`) where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    /// The reason in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Killing => "Killing",
            Self::FailedPreStopHook => "FailedPreStopHook",
            Self::FailedKillPod => "FailedKillPod",
            Self::FailedUnMount => "FailedUnMount",
            Self::RuntimeStateMismatch => "RuntimeStateMismatch",
            Self::ProcessesKilled => "ProcessesKilled",
            Self::TeardownBlocked => "TeardownBlocked",
            Self::TeardownActive => "TeardownActive",
            Self::TeardownStandby => "TeardownStandby",
            Self::TeardownObserving => "TeardownObserving",
            Self::KubeletFailing => "KubeletFailing",
            Self::KubeletUnresponsive => "KubeletUnresponsive",
            Self::DriverHoldExceeded => "DriverHoldExceeded",
            Self::Evicted => "Evicted",
            Self::StopRequestCanceled => "StopRequestCanceled",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::ExceededGracePeriod => "ExceededGracePeriod",
            Self::OwnerRefInvalidNamespace => "OwnerRefInvalidNamespace",
            Self::ForegroundDeletionDelayed => "ForegroundDeletionDelayed",
        }
    }

    /// `Normal` or `Warning`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Killing
            | Self::DeadlineExceeded
            | Self::TeardownActive
            | Self::TeardownStandby
            | Self::TeardownObserving => "Normal",
            Self::FailedPreStopHook
            | Self::FailedKillPod
            | Self::FailedUnMount
            | Self::RuntimeStateMismatch
            | Self::ProcessesKilled
            | Self::TeardownBlocked
            | Self::KubeletFailing
            | Self::KubeletUnresponsive
            | Self::DriverHoldExceeded
            | Self::Evicted
            | Self::StopRequestCanceled
            | Self::ExceededGracePeriod
            | Self::OwnerRefInvalidNamespace
            | Self::ForegroundDeletionDelayed => "Warning",
        }
    }
}
