//! Why an event is sent.

/// Why something happened, in the kubelet's spelling.
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
    /// The runtime says of containers that they run, and their processes have exited.
    RuntimeStateWrong,
    /// A pod's end does not come, for whichever cause.
    TeardownBlocked,
    /// A driver's end no longer waits for the pods that need it.
    DriverHoldExceeded,
    /// Somebody decided on the end of a pod.
    Evicted,
    /// Somebody's decision on the end of a pod is not carried out: a kubelet runs it again.
    TeardownGivenUp,
    /// The pod lived past its active deadline.
    DeadlineExceeded,
    /// A pod that somebody wanted ended takes longer than it should.
    ExceededGracePeriod,
    /// An owner reference names an object of another namespace.
    OwnerRefInvalidNamespace,
    /// A foreground deletion waits for groups whose servers cannot be reached.
    ForegroundDeletionDelayed,
}

// === impl Reason ===

impl Reason {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Killing => "Killing",
            Self::FailedPreStopHook => "FailedPreStopHook",
            Self::FailedKillPod => "FailedKillPod",
            Self::FailedUnMount => "FailedUnMount",
            Self::RuntimeStateWrong => "RuntimeStateWrong",
            Self::TeardownBlocked => "TeardownBlocked",
            Self::DriverHoldExceeded => "DriverHoldExceeded",
            Self::Evicted => "Evicted",
            Self::TeardownGivenUp => "TeardownGivenUp",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::ExceededGracePeriod => "ExceededGracePeriod",
            Self::OwnerRefInvalidNamespace => "OwnerRefInvalidNamespace",
            Self::ForegroundDeletionDelayed => "ForegroundDeletionDelayed",
        }
    }

    /// `Normal` or `Warning`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Killing | Self::DeadlineExceeded => "Normal",
            Self::FailedPreStopHook
            | Self::FailedKillPod
            | Self::FailedUnMount
            | Self::RuntimeStateWrong
            | Self::TeardownBlocked
            | Self::DriverHoldExceeded
            | Self::Evicted
            | Self::TeardownGivenUp
            | Self::ExceededGracePeriod
            | Self::OwnerRefInvalidNamespace
            | Self::ForegroundDeletionDelayed => "Warning",
        }
    }
}
