//! Unmounts the pod's volumes and removes their directories, also of a pod whose status the API server does not accept: the node's
//! memory and secrets are freed all the same.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    model::{
        failure::{Failure, first_message},
        mismatch::{Mismatch, MismatchKind},
        pod::PodView,
        trace::Step,
    },
    node::{
        effects::Outcome,
        fault::{Cause, Fault},
    },
    teardown::{
        attempt::Attempt,
        bounded_read::text,
        context::Context,
        locate,
        plan::{PlanFacts, Planned},
        volumes::{self, Approved},
    },
};

// === The decision ===

/// Volumes that count as unpublished without their drivers, by approval.
fn approved(context: &Context, view: &PodView) -> Approved {
    let approvals = context.journal.approvals(&view.pod.uid).into_iter();
    let of_volumes = approvals.filter(|approval| {
        let is_of_volume = approval.mismatch.kind == MismatchKind::VolumeNotUnpublished;
        is_of_volume && approval.at.boot_id == context.node.clock.boot_id
    });
    Arc::new(of_volumes.flat_map(|approval| approval.mismatch.facts).collect())
}

/// A volume may wait only for its driver: a user may approve to continue without the driver. One approval is for all such volumes
/// of the pod. It counts once they are unmounted.
fn volume_failures(view: &PodView, faults: &[Fault], approved: &Approved) -> Vec<Failure> {
    let without_driver = |fault: &Fault| match &fault.cause {
        Cause::DriverFailed { volume, .. } => Some(volume.clone()),
        _ => None,
    };
    let all: BTreeSet<_> = faults.iter().filter_map(without_driver).collect();
    let is_approved = all.is_subset(approved);
    let failure = |fault: &Fault| {
        let failure = fault.failure(Step::Volumes);
        let Cause::DriverFailed { mounted, .. } = &fault.cause else {
            return failure;
        };
        let when = match mounted.is_empty() {
            true => "If the volume is no longer on this node, or its driver never returns, approve",
            false => "Approve, before or after that,",
        };
        let approve = match is_approved {
            true => "It is approved that the agent then continues without the driver".to_owned(),
            false => format!(
                "{when} that the agent continues without the driver: pod-teardown approve pod/{}",
                view.pod
            ),
        };
        let mismatch = Mismatch::new(MismatchKind::VolumeNotUnpublished, all.iter().cloned());
        Failure {
            cause: format!("{}. {approve}", failure.cause),
            mismatch: Some(mismatch).filter(|_| !is_approved),
            ..failure
        }
    };
    faults.iter().map(failure).collect()
}

// === The effect ===

/// Tears the volumes down, and checks on disk that they are removed.
pub async fn run(attempt: &mut Attempt<'_>) -> Result<(), Vec<Failure>> {
    let (context, view) = (&attempt.worker.context, attempt.view());
    let dir = locate::pod_dir(context, view)?;
    let span = attempt.worker.recorder.span(Step::Volumes, "");
    let tear_down = async || {
        let approved = approved(context, view);
        let done = volumes::tear_down_volumes(&dir, &context.node.storage, &approved).await;
        done.map_err(|faults| volume_failures(view, &faults, &approved))
    };
    let mut result = tear_down().await;
    // A process that survived its container may hold a volume.
    if let Err(failures) = &mut result {
        match locate::kill_cgroups(attempt.worker, view).await {
            (Outcome::Done, more) if more.is_empty() => result = tear_down().await,
            (_, more) => failures.extend(more),
        }
    }
    span.end(&result.as_ref().map_err(|failures| first_message(failures)));
    result
}

// === The plan ===

/// Unmounts, calls of drivers and removals, in their order.
pub async fn plan(facts: &PlanFacts) -> Planned {
    let read = |context: &Context, view: &PodView| {
        let dir = locate::pod_dir(context, view)?;
        let storage = &context.node.storage;
        let table = storage.all_mounts.read().map_err(text)?;
        let planned = volumes::planned(&dir, storage, &table).map_err(text)?;
        Ok(planned.into_iter().flat_map(|volume| volume.actions).collect())
    };
    vec![(Step::Volumes, facts.on_node("its volumes", read).await)]
}
