//! Values of flags and arguments.

use clap::ValueEnum;

use crate::{
    collector::{Mode, Unsynced},
    model::termination::is_reason,
    node::cri::types::CgroupDriver,
};

/// `--cgroup-driver`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CgroupDriverFlag {
    /// Detected: cgroups are searched under the names of both.
    Auto,
    /// Plain directories. The agent does not touch slices.
    Cgroupfs,
    /// Slices and scopes of systemd. The agent does not touch other directories.
    Systemd,
}

/// `--pods`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PodsFlag {
    /// Standby while this node's kubelet works; active while it is down.
    Auto,
    /// This node has no kubelet. The agent touches nothing while a kubelet process exists.
    Always,
    /// No pods: the agent only collects garbage, and needs no runtime.
    Never,
}

/// `--force-unmount`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ForceUnmountFlag {
    /// Its pod waits until the server answers again.
    Never,
    /// The connection is cut after some seconds. Data that was written and not sent is lost.
    DeadServer,
}

/// `--gc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GcFlag {
    /// While the collector of kube-controller-manager is not active.
    Auto,
    /// Whatever kube-controller-manager does.
    Always,
    /// Never.
    Never,
}

/// `--gc-unsynced`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UnsyncedFlag {
    /// They wait until it can be listed.
    Hold,
    /// They continue without it. Dependents of that kind may be deleted instead of orphaned.
    Proceed,
}

// === impl GcFlag ===

impl From<GcFlag> for Mode {
    fn from(flag: GcFlag) -> Self {
        match flag {
            GcFlag::Auto => Self::Auto,
            GcFlag::Always => Self::Always,
            GcFlag::Never => Self::Never,
        }
    }
}

// === impl UnsyncedFlag ===

impl From<UnsyncedFlag> for Unsynced {
    fn from(flag: UnsyncedFlag) -> Self {
        match flag {
            UnsyncedFlag::Hold => Self::Hold,
            UnsyncedFlag::Proceed => Self::Proceed,
        }
    }
}

// === impl CgroupDriverFlag ===

impl CgroupDriverFlag {
    /// The driver; `None` for `auto`.
    pub fn given(self) -> Option<CgroupDriver> {
        match self {
            Self::Auto => None,
            Self::Cgroupfs => Some(CgroupDriver::Cgroupfs),
            Self::Systemd => Some(CgroupDriver::Systemd),
        }
    }
}

/// Parses a duration with a unit, and rounds up to seconds.
pub(super) fn whole_seconds(text: &str) -> Result<i64, String> {
    let duration = humantime::parse_duration(text).map_err(|error| format!("{error}; it needs a unit, such as 5s"))?;
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i64::try_from(seconds).map_err(|error| error.to_string())
}

/// Parses the reason of an eviction.
pub(super) fn reason(text: &str) -> Result<String, &'static str> {
    if is_reason(text) {
        Ok(text.to_owned())
    } else {
        Err("must be one word of letters and digits, such as Evicted")
    }
}
