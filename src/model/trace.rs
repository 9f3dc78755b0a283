//! The trace of a pod's termination: its steps, stages, and what blocks it.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    model::{
        blocked::Blocked,
        failure::{BLOCKED, Failure, STATIC_POD, write_at},
        mismatch::Mismatch,
        pod::PodRef,
        termination::{Cause, GraceStart},
    },
    words::format_count,
};

pub use crate::model::step::Step;

/// Stage of a pod's termination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Its containers are being stopped.
    #[default]
    Terminating,
    /// Nothing of it runs; the node is being cleaned up.
    Terminated,
    /// Its object is deleted, or only finalizers keep it; its leftovers in the runtime are being removed.
    Deleted,
    /// All work is done.
    Finished,
}

/// One bar of a timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// The step.
    pub step: Step,
    /// Target of the step, such as a container's name; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// Milliseconds since the beginning of the termination.
    pub start_ms: u64,
    /// Milliseconds since the beginning; `None` while the step is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ms: Option<u64>,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The trace of a pod's termination, as it is reported.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Trace {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// When the termination began, or became known if it has not begun yet.
    pub began: Timestamp,
    /// When the agent restarted since. Attempts and spans before that are not part of the trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Timestamp>,
    /// Why the pod terminates.
    pub cause: Cause,
    /// Grace period in force, in seconds.
    pub grace_seconds: u64,
    /// Remaining grace period in milliseconds; 0 when it has expired.
    pub grace_left_ms: u64,
    /// Milliseconds from the beginning to the end of the grace period; `None` before the grace period begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_end_ms: Option<u64>,
    /// What the grace period is counted from.
    pub grace_counted_from: GraceStart,
    /// Stage of the termination.
    pub stage: Stage,
    /// Milliseconds from the beginning until now, or until it finished.
    pub elapsed_ms: u64,
    /// Number of attempts in this run of the agent.
    pub attempts: u32,
    /// What blocks it: failures of the last attempt that were not resolved, or what it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked: Vec<Obstacle>,
    /// The terminal phase in the API. `None` before that, or if the object was deleted first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The pod-level reason in the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// All work is done that is possible before a deletion, which may never come.
    #[serde(default, rename = "awaitingDeletion", skip_serializing_if = "std::ops::Not::not")]
    pub waits_for_deletion: bool,
    /// Finalizers that keep its object after the final delete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// Why the stop request was canceled, if it was.
    #[serde(default, rename = "canceledBecause", skip_serializing_if = "Option::is_none")]
    pub canceled_because: Option<String>,
    /// Report of what the runtime still shows as running after its stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_state: Option<String>,
    /// Milliseconds until this agent kills the processes of that report; `None` if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill_in_ms: Option<u64>,
    /// Error of the first failed stop of a sandbox. If it names the network, that may still exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_error: Option<String>,
    /// The bars of its timeline.
    pub spans: Vec<Span>,
    /// A mismatch of evidence that needs an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<UnapprovedMismatch>,
}

/// One reason why a pod's termination is blocked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Obstacle {
    /// The step that failed and is retried; `None` if the whole pod waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
    /// Target of the step: a container's name or a path; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// Kind of the reason.
    pub reason: BlockedReason,
    /// Message for the user.
    pub message: String,
    /// When the next attempt begins at the latest; `None` during an attempt, or if the whole pod waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// PIDs of processes that have to exit first, as far as known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<i32>,
}

/// Kind of a reason that blocks a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum BlockedReason {
    /// The guard blocks all effects on this node.
    Guard,
    /// A user has paused the agent.
    Paused,
    /// A sandbox with the UID of this pod belongs to a static pod.
    StaticPod,
    /// Other terminating pods need this one.
    Dependents,
    /// A mismatch of evidence needs an approval.
    Mismatch,
    /// A step failed.
    Failed,
}

/// A mismatch that blocks a pod until it is approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UnapprovedMismatch {
    /// The mismatch.
    #[serde(flatten)]
    pub mismatch: Mismatch,
    /// When it was first detected.
    pub since: Timestamp,
    /// Message for the user.
    pub why: String,
}

// === impl Trace ===

impl Trace {
    /// The trace of a pod that begins to terminate, without its grace period.
    pub fn new(pod: &PodRef, cause: Cause, began: Timestamp) -> Self {
        Self {
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            uid: pod.uid.to_string(),
            began,
            cause,
            ..Self::default()
        }
    }

    /// Whether the grace period has not begun on this node: it runs from the moment when this agent begins to terminate the pod.
    pub fn awaits_grace_period(&self) -> bool {
        self.stage == Stage::Terminating && self.grace_counted_from == GraceStart::NotBegun && self.grace_left_ms > 0
    }

    /// Suffix with the terminal phase and reason in the API, such as ` as Failed (Evicted)`; empty before that.
    pub fn phase_suffix(&self) -> String {
        match (&self.phase, &self.reason) {
            (None, _) => String::new(),
            (Some(phase), None) => format!(" as {phase}"),
            (Some(phase), Some(reason)) => format!(" as {phase} ({reason})"),
        }
    }

    /// Two texts: `began WHEN (CAUSE)` and `N attempts`.
    pub fn start_and_attempts(&self) -> (String, String) {
        let at = |at: Timestamp| at.strftime("%Y-%m-%d %H:%M:%S UTC");
        let attempts = format_count(self.attempts.into(), "attempt");
        let (verb, attempts) = match self.resumed {
            None if self.attempts == 0 => ("known since", "nothing was tried yet".to_owned()),
            None => ("began", attempts),
            Some(resumed) => (
                "began",
                format!("{attempts} since this agent was started again at {}", at(resumed)),
            ),
        };
        (format!("{verb} {} ({})", at(self.began), self.cause), attempts)
    }

    /// When the next attempt begins at the latest; `None` during an attempt.
    pub fn next_attempt(&self) -> Option<Timestamp> {
        self.blocked.iter().filter_map(|blocked| blocked.retry_at).min()
    }

    /// The step that failed first in the last attempt.
    pub fn failed_at(&self) -> Option<Step> {
        self.blocked.first()?.step
    }
}

// === impl Obstacle ===

impl Obstacle {
    /// The whole pod waits.
    pub fn pod(reason: BlockedReason, message: impl Into<String>) -> Self {
        Self {
            step: None,
            target: String::new(),
            reason,
            message: message.into(),
            retry_at: None,
            holders: Vec::new(),
        }
    }
}

impl From<&Blocked> for Obstacle {
    fn from(blocked: &Blocked) -> Self {
        let reason = match blocked {
            Blocked::Paused(_) => BlockedReason::Paused,
            _ => BlockedReason::Guard,
        };
        Self::pod(reason, blocked.to_string())
    }
}

impl From<&Failure> for Obstacle {
    fn from(failure: &Failure) -> Self {
        let reason = match failure {
            Failure { mismatch: Some(_), .. } => BlockedReason::Mismatch,
            Failure { reason, .. } if *reason == BLOCKED => BlockedReason::Guard,
            Failure { reason, .. } if *reason == STATIC_POD => BlockedReason::StaticPod,
            _ => BlockedReason::Failed,
        };
        Self {
            step: Some(failure.step),
            target: failure.what.clone(),
            holders: failure.holders.clone(),
            ..Self::pod(reason, failure.cause.as_str())
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            step, target, message, ..
        } = self;
        match step {
            Some(step) => write_at(f, *step, target, message),
            None => write!(f, "blocked: {message}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Trace {
        /// The trace of a deleted pod that has begun to terminate.
        pub fn sample() -> Self {
            let pod = PodRef {
                uid: "1234".into(),
                namespace: "default".into(),
                name: "web-0".into(),
            };
            Self {
                grace_seconds: 30,
                attempts: 1,
                ..Self::new(&pod, Cause::Deleted, "2026-01-02T03:04:05Z".parse().unwrap())
            }
        }
    }
}
