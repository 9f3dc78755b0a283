//! Computes the phase from the states of the containers.

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::containers::Lists;
use super::index::ByName;
use super::input::{StatusInput, StatusStage};
use super::phase::{ContainerLife, Phase};
use super::restart::{is_sidecar, restarts_after};
use crate::node::cri::types::Container as Instance;

/// Number of containers in each state.
#[derive(Debug, Default)]
struct Tally {
    init_failed_for_good: usize,
    init_pending: usize,
    sidecar_pending: usize,
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    stopped_for_good: usize,
    succeeded: usize,
}

/// `getPhase`. Ephemeral containers never count.
pub(super) fn phase(input: &StatusInput<'_>, spec: &PodSpec, lists: &Lists) -> Phase {
    let mut tally = Tally::default();
    let (init, regular) = (ByName::entries(&lists.init), ByName::entries(&lists.regular));
    for container in spec.init_containers.iter().flatten() {
        let life = init
            .get(&container.name)
            .map_or(ContainerLife::Unknown, ContainerLife::from_status);
        if is_sidecar(container) {
            tally.sidecar(life);
        } else {
            tally.init(spec, container, life);
        }
    }
    for container in &spec.containers {
        let life = regular
            .get(&container.name)
            .map_or(ContainerLife::Unknown, ContainerLife::from_status);
        tally.regular(spec, container, life);
    }
    let stopped = match input.stage {
        StatusStage::Terminating => false,
        StatusStage::Stopped | StatusStage::Terminated => true,
    };
    tally.phase(stopped, regular_was_created(input, spec))
}

/// Whether the newest sandbox has a regular container: then initialization is complete, regardless of sidecars
/// (`HasAnyActiveRegularContainerStarted`).
fn regular_was_created(input: &StatusInput<'_>, spec: &PodSpec) -> bool {
    input.observed.sandboxes.first().is_some_and(|sandbox| {
        let in_sandbox = |container: &&Instance| container.sandbox_id == sandbox.id;
        let mut inside = input.observed.containers.iter().filter(in_sandbox);
        let regular = ByName::containers(&spec.containers);
        inside.any(|instance| regular.get(&instance.name).is_some())
    })
}

// === impl Tally ===

impl Tally {
    fn init(&mut self, spec: &PodSpec, container: &Container, life: ContainerLife<'_>) {
        match life {
            ContainerLife::Unknown | ContainerLife::Waiting | ContainerLife::Running { .. } => self.init_pending += 1,
            ContainerLife::Ended { exit_code: 0, .. } | ContainerLife::WaitingAgain { exit_code: 0, .. } => {}
            ContainerLife::Ended { exit_code, reason } | ContainerLife::WaitingAgain { exit_code, reason } => {
                if !restarts_after(spec, container, exit_code, reason) {
                    self.init_failed_for_good += 1;
                }
            }
        }
    }

    fn sidecar(&mut self, life: ContainerLife<'_>) {
        match life {
            ContainerLife::Unknown => {
                self.sidecar_pending += 1;
                self.unknown += 1;
            }
            ContainerLife::Waiting => {
                self.sidecar_pending += 1;
                self.waiting += 1;
            }
            ContainerLife::Running { started } => {
                self.sidecar_pending += usize::from(!started);
                self.running += 1;
            }
            // An exited sidecar does not affect the result of the pod.
            ContainerLife::Ended { .. } | ContainerLife::WaitingAgain { .. } => {}
        }
    }

    fn regular(&mut self, spec: &PodSpec, container: &Container, life: ContainerLife<'_>) {
        match life {
            ContainerLife::Unknown => self.unknown += 1,
            ContainerLife::Waiting => self.waiting += 1,
            ContainerLife::Running { .. } => self.running += 1,
            ContainerLife::Ended { exit_code, reason } => {
                self.stopped += 1;
                self.stopped_for_good += usize::from(!restarts_after(spec, container, exit_code, reason));
                self.succeeded += usize::from(exit_code == 0);
            }
            // Not a success: it was meant to run again.
            ContainerLife::WaitingAgain { exit_code, reason } => {
                self.stopped += 1;
                self.stopped_for_good += usize::from(!restarts_after(spec, container, exit_code, reason));
            }
        }
    }

    fn phase(&self, pod_is_stopped: bool, regular_was_created: bool) -> Phase {
        let all_succeeded = if self.stopped == self.succeeded {
            Phase::Succeeded
        } else {
            Phase::Failed
        };
        if self.init_failed_for_good > 0 {
            Phase::Failed
        } else if self.init_pending > 0
            || (self.sidecar_pending > 0 && !regular_was_created)
            || self.waiting > 0
            || self.unknown > 0
        {
            Phase::Pending
        } else if self.running > 0 {
            Phase::Running
        } else if self.stopped == 0 {
            Phase::Pending
        } else if pod_is_stopped || self.stopped_for_good == self.stopped {
            // In a stopped pod nothing restarts, regardless of its restart policy.
            all_succeeded
        } else {
            Phase::Running
        }
    }
}
