//! What the journal has of the termination of one pod.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    clock::Mark,
    model::{mismatch::MismatchApproval, termination::Eviction, trace::Stage},
    node::cri::types::{Container, ContainerState},
};

/// The termination of one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodEntry {
    /// For people.
    pub namespace: String,
    /// For people.
    pub name: String,
    /// When this node began to terminate the pod.
    pub begun: Mark,
    /// The grace period in force, counted from `begun`.
    pub grace: Duration,
    /// It has not begun: no attempt was made yet, for example while a kubelet runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_attempted: bool,
    /// It has not begun: the pod waits for other pods that need it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits_for_dependents: bool,
    /// Its containers were being stopped, and it has not reached a safe point since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_progress: bool,
    /// Its claims of dynamic resources were unprepared. The kubelet's checkpoint still has them: this agent never changes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub claims_unprepared: bool,
    /// The eviction that a user requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction: Option<Eviction>,
    /// The stop request that began it, until the API shows another reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    /// By container id.
    #[serde(default)]
    pub hooks: BTreeMap<String, HookEntry>,
    /// For people: every attempt begins with the observed state.
    #[serde(default)]
    pub stage: Stage,
    /// Exited containers.
    #[serde(default)]
    pub exits: Exits,
    /// Processes that the runtime has named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<KnownProcess>,
    /// The pod as JSON, if no API server has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// Mismatches that a user has approved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<MismatchApproval>,
}

/// A request to stop a pod. A kubelet does not have it, and restarts the containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// No kubelet was seen since.
    Active,
    /// A kubelet was seen since, or may have run: the pod is that kubelet's.
    Canceled,
}

/// A process that the runtime has named, and that is proven to be the pod's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownProcess {
    /// What it is of, such as `container main`.
    pub what: String,
    /// Its PID.
    pub pid: i32,
    /// Its start since boot. With another start it is another process.
    pub start: Duration,
    /// The kernel's ID of the boot.
    pub boot_id: String,
}

/// A preStop hook that has started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookEntry {
    /// When it started.
    pub started: Mark,
    /// It has finished or failed, and never runs again.
    pub ended: bool,
}

/// Exited containers, by ID, as far as a status needs them when the runtime has forgotten them.
pub type Exits = BTreeMap<String, ContainerExit>;

/// An exited container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerExit {
    /// As a status shows it, without its files: they may be removed.
    pub container: Container,
    /// Its termination message; `None` if it could not be read.
    pub termination_message: Option<String>,
}

// === impl ContainerExit ===

impl ContainerExit {
    pub(crate) fn new(container: Container, termination_message: Option<String>) -> Self {
        let container = Container {
            state: ContainerState::Exited,
            termination_message_file: None,
            message_falls_back_to_log: false,
            log_path: String::new(),
            is_unread: false,
            ..container
        };
        Self {
            container,
            termination_message,
        }
    }
}

// === impl PodEntry ===

impl PodEntry {
    /// Whether its grace period has begun.
    pub fn has_begun(&self) -> bool {
        !(self.not_attempted || self.waits_for_dependents)
    }

    /// Begins its grace period: nothing has been done to the pod before.
    pub fn begin_grace(&mut self, now: Mark) {
        (self.begun, self.not_attempted, self.waits_for_dependents) = (now, false, false);
    }

    /// Clears an active stop request.
    pub fn clear_stop_request(&mut self) {
        self.request.take_if(|request| *request == Request::Active);
    }
}
