//! Why a pod still exists: a list of causes, each with a message and a remedy.

use serde::{Deserialize, Serialize};

use super::finalizers::removed_by;
use crate::{
    model::{step::Step, termination::Terminator},
    words::{escape_control_chars, format_count},
};

/// One cause, most urgent first in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "WhyCause"))]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// How urgent it is.
    pub severity: Severity,
    /// What it is.
    pub kind: CauseKind,
    /// The step of the teardown that waits for it or has failed, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
    /// Message for the user: one sentence without a period at its end.
    pub message: String,
    /// What the user can do; empty if there is nothing to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

/// What a cause is. Its message has the details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the message of each cause explains it")]
pub enum CauseKind {
    StepFailed,
    NotDeleted,
    EndedNotDeleted,
    MirrorPod,
    KubeletTerminates,
    AgentBlocked,
    AgentPaused,
    ApiServerUnreachable,
    NodeUnreachable,
    NodeMissing,
    NodeNotReady,
    Reported,
    GracePeriod,
    PreStopHook,
    SidecarWaits,
    SigtermNotHandled,
    Frozen,
    Uninterruptible,
    StillRuns,
    ShimStopped,
    ContainerUnknown,
    ProcessesLeft,
    RuntimeNotReady,
    RuntimeUnreachable,
    SandboxNotStopped,
    MountBusy,
    MountLeft,
    MountHidden,
    ServerMount,
    DriverMissing,
    VolumeDirectoriesLeft,
    CgroupsLeft,
    PhaseNotTerminal,
    FinalDeletePending,
    Finalizer,
    Unknown,
    NothingFound,
}

/// How urgent a cause is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// It blocks the termination until it is resolved.
    Blocking,
    /// It resolves without an action.
    Waiting,
    /// It could not be read: no conclusion is drawn.
    Unknown,
    /// It will block a later step.
    Later,
    /// For information.
    Info,
}

// === impl Cause ===

impl Cause {
    /// A cause without a step and a remedy. The message may contain untrusted texts: control characters are escaped.
    pub fn new(severity: Severity, kind: CauseKind, message: impl AsRef<str>) -> Self {
        Self {
            severity,
            kind,
            step: None,
            message: escape_control_chars(message.as_ref()),
            remedy: String::new(),
        }
    }

    /// With the step that waits for it.
    #[must_use]
    pub fn at(self, step: Step) -> Self {
        let step = Some(step);
        Self { step, ..self }
    }

    /// With this remedy: an instruction without a period at its end.
    #[must_use]
    pub fn with_remedy(self, remedy: impl AsRef<str>) -> Self {
        let remedy = escape_control_chars(remedy.as_ref());
        Self { remedy, ..self }
    }

    /// A fact that could not be read.
    pub fn unknown(what: &str, why: &str) -> Self {
        let message = format!("could not read {what}: {why}");
        Self::new(Severity::Unknown, CauseKind::Unknown, message)
            .with_remedy("no conclusion is drawn; repeat the command, or inspect it manually")
    }

    /// The pod is not being deleted, and it has not terminated. `running`: its running containers, if known.
    pub fn not_deleted(phase: Option<&str>, running: Option<usize>) -> Self {
        let state = match (running, phase) {
            (Some(0), Some(phase)) => format!("its phase is {phase}, and none of its containers runs"),
            (Some(running), _) if running > 0 => {
                format!("it runs, with {}", format_count(running as u64, "running container"))
            }
            (_, Some(phase)) => format!("its phase is {phase}"),
            (_, None) => "its phase is not known".to_owned(),
        };
        let message = format!("it is not being deleted: its object has no deletionTimestamp; {state}");
        Self::new(Severity::Info, CauseKind::NotDeleted, message)
    }

    /// The pod has a terminal phase, and is not being deleted.
    pub fn ended_not_deleted(phase: Option<&str>, reason: Option<&str>) -> Self {
        let phase = phase.map_or_else(String::new, |phase| format!(" as {phase}"));
        let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
        let message = format!("it has terminated{phase}{reason}, and it is not being deleted");
        Self::new(Severity::Info, CauseKind::EndedNotDeleted, message)
            .with_remedy("delete it, or wait for the controller that owns it")
    }

    /// A finalizer keeps the object.
    pub fn finalizer(severity: Severity, finalizer: &str) -> Self {
        let by = removed_by(finalizer);
        let message = format!("finalizer {finalizer} keeps its object; usually removed by {by}");
        Self::new(severity, CauseKind::Finalizer, message)
            .at(Step::Delete)
            .with_remedy(
                "read the log of that controller; if you remove the finalizer by hand, the controller's work is skipped",
            )
    }
}

/// What the process that terminates the pod has to do next.
pub fn next(terminator: Terminator, of_agent: &'static str, of_kubelet: &'static str) -> &'static str {
    match terminator {
        Terminator::Agent => of_agent,
        Terminator::Kubelet => of_kubelet,
        Terminator::NoProcess => "no process does it now: start the kubelet, or resolve what blocks this agent",
    }
}

// === impl Severity ===

impl Severity {
    /// The word in the text.
    pub fn label(self) -> &'static str {
        match self {
            Self::Blocking => "BLOCKED",
            Self::Waiting => "WAITS",
            Self::Unknown => "UNKNOWN",
            Self::Later => "LATER",
            Self::Info => "INFO",
        }
    }
}
