//! The story as it is told.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    model::{
        failure::{Failure, HELD, write_at},
        mismatch::Mismatch,
        termination::Cause,
    },
    words::counted,
};

/// Steps of a teardown, in the order in which they are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// A preStop hook runs.
    Hook,
    /// A container has its stop signal and ends by itself.
    Term,
    /// A container outlived its grace period.
    Kill,
    /// Sandboxes are stopped.
    Sandbox,
    /// Devices of dynamic resources are unprepared.
    Devices,
    /// Volumes are unmounted and their directories removed.
    Volumes,
    /// The pod's cgroup is emptied and removed.
    Cgroup,
    /// The status is sent.
    Status,
    /// The final delete.
    Delete,
    /// Containers, sandboxes, logs and the pod's directory are removed.
    Cleanup,
}

/// Where a pod's end stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Its containers are being stopped.
    #[default]
    Terminating,
    /// Nothing of it runs; the node is being cleaned.
    Terminated,
    /// The API object is gone or held by finalizers; what is left in the runtime is being removed.
    Deleted,
    /// Nothing is left to do.
    Finished,
}

/// One bar of a timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// Which step.
    pub step: Step,
    /// What it was about, such as a container's name; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// Milliseconds from the beginning.
    pub start_ms: u64,
    /// Milliseconds from the beginning; `None` while it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ms: Option<u64>,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The story as it is told on request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Story {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Identity.
    pub uid: String,
    /// When this agent began, or was told of it where it has yet to begin.
    pub began: Timestamp,
    /// When it was started again meanwhile, and how often was tried and what was done before is not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Timestamp>,
    /// Why.
    pub cause: Cause,
    /// Grace period in force, in seconds.
    pub grace_seconds: u64,
    /// Time left of the grace period, in milliseconds; 0 when it is over.
    pub grace_left_ms: u64,
    /// Where it stands.
    pub stage: Stage,
    /// Milliseconds since the beginning, or until the end.
    pub elapsed_ms: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// Why it does not go on: what failed in the last attempt, until that succeeds, or what it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked: Vec<Blocked>,
    /// The phase in which the API shows that it is over; nothing before that, and where the object was gone first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The reason that the API shows with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// All is done but for a deletion, which may never come.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// What keeps its object after this node has deleted it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// Why the request for its end was given up, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<String>,
    /// What is to be said of the runtime's word that containers run, where its stops do not end them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_state: Option<String>,
    /// How the stop of a sandbox failed the first time: its network may be left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_error: Option<String>,
    /// The bars.
    pub spans: Vec<Span>,
    /// What only a person can settle, if that is what it waits for.
    #[serde(default, rename = "doubted", skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<OpenMismatch>,
}

/// One reason why a pod's termination does not go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocked {
    /// The step that failed and is tried again; nothing where the whole pod waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
    /// What the step is about: a container's name or a path; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// What kind of reason it is.
    pub reason: BlockedReason,
    /// The reason in words.
    pub message: String,
    /// PIDs of processes that have to exit first, as far as known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<i32>,
}

/// What kind of reason blocks a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BlockedReason {
    /// The agent may touch nothing on this node.
    Guard,
    /// A user has paused the agent.
    Paused,
    /// Other pods that terminate need this one.
    Dependents,
    /// What was found on the node does not match, and needs an approval.
    Mismatch,
    /// A step failed.
    Failed,
}

/// A mismatch that blocks a pod until it is approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenMismatch {
    /// What does not match.
    #[serde(rename = "doubt")]
    pub mismatch: Mismatch,
    /// Since when.
    pub since: Timestamp,
    /// In words.
    pub why: String,
}

// === impl Story ===

impl Story {
    /// How the API shows that it is over, to be put behind a word, or nothing.
    pub fn shown(&self) -> String {
        match (&self.phase, &self.reason) {
            (None, _) => String::new(),
            (Some(phase), None) => format!(" as {phase}"),
            (Some(phase), Some(reason)) => format!(" as {phase} ({reason})"),
        }
    }

    /// Since when, why and how often, as far as it has come to that: `began WHEN (WHY)` and `N attempts`.
    pub fn begun(&self) -> (String, String) {
        let at = |at: Timestamp| at.strftime("%Y-%m-%d %H:%M:%S UTC");
        let attempts = counted(self.attempts.into(), "attempt");
        match self.resumed {
            None if self.attempts == 0 => (
                format!("known since {} ({})", at(self.began), self.cause),
                "nothing was tried yet".to_owned(),
            ),
            None => (format!("began {} ({})", at(self.began), self.cause), attempts),
            Some(resumed) => (
                format!("began {} ({})", at(self.began), self.cause),
                format!("{attempts} since this agent was started again at {}", at(resumed)),
            ),
        }
    }

    /// The step that failed first in the last attempt.
    pub fn failed_at(&self) -> Option<Step> {
        self.blocked.first()?.step
    }
}

// === impl Blocked ===

impl Blocked {
    /// The whole pod waits.
    pub fn pod(reason: BlockedReason, message: impl Into<String>) -> Self {
        Self {
            step: None,
            target: String::new(),
            reason,
            message: message.into(),
            holders: Vec::new(),
        }
    }
}

impl From<&Failure> for Blocked {
    fn from(failure: &Failure) -> Self {
        Self {
            step: Some(failure.step),
            target: failure.what.clone(),
            reason: match failure {
                Failure { mismatch: Some(_), .. } => BlockedReason::Mismatch,
                Failure { reason, .. } if *reason == HELD => BlockedReason::Guard,
                _ => BlockedReason::Failed,
            },
            message: failure.cause.clone(),
            holders: failure.held_by.clone(),
        }
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            step, target, message, ..
        } = self;
        match step {
            Some(step) => write_at(f, *step, target, message),
            None => write!(f, "held: {message}"),
        }
    }
}

// === impl Step ===

impl Step {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Hook,
        Self::Term,
        Self::Kill,
        Self::Sandbox,
        Self::Devices,
        Self::Volumes,
        Self::Cgroup,
        Self::Status,
        Self::Delete,
        Self::Cleanup,
    ];
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Hook => "hook",
            Self::Term => "term",
            Self::Kill => "kill",
            Self::Sandbox => "sandbox",
            Self::Devices => "devices",
            Self::Volumes => "volumes",
            Self::Cgroup => "cgroup",
            Self::Status => "status",
            Self::Delete => "delete",
            Self::Cleanup => "cleanup",
        })
    }
}

#[cfg(test)]
impl Story {
    /// Of a pod that has begun to end after its deletion, for tests that change what matters to them.
    pub fn sample() -> Self {
        Self {
            namespace: "default".into(),
            name: "web-0".into(),
            uid: "1234".into(),
            began: "2026-01-02T03:04:05Z".parse().unwrap(),
            resumed: None,
            cause: Cause::Deleted,
            grace_seconds: 30,
            grace_left_ms: 0,
            stage: Stage::Terminating,
            elapsed_ms: 0,
            attempts: 1,
            blocked: Vec::new(),
            phase: None,
            reason: None,
            kept: false,
            finalizers: Vec::new(),
            given_up: None,
            runtime_state: None,
            sandbox_error: None,
            spans: Vec::new(),
            mismatch: None,
        }
    }
}
