//! A pod whose sandbox cannot be stopped, for example without the network plugin: once no process of it is left, its volumes are
//! unmounted all the same.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::super::{exits, survivors, volumes};
use crate::{
    model::{
        failure::{Failure, names_network},
        mismatch::{Mismatch, MismatchKind},
        trace::Step,
    },
    teardown::attempt::{AFTER_STOP, Attempt},
};

/// Where network plugins are configured, unless the runtime reports another directory. Without a configuration the runtime cannot
/// take a sandbox's network down.
const NETWORK_CONFIGURATION: &str = "/etc/cni/net.d";
/// So long only the network of a pod has to fail until a user is offered to let the object go.
const OFFER_AFTER: Duration = Duration::from_secs(60);

/// Unmounts the volumes of a pod whose stop has failed like this. It counts as stopped if a user has approved that its network stays.
///
/// # Errors
/// `failures`, with those of the unmount added: the API object still waits for the sandbox. After [`OFFER_AFTER`], one of them can
/// be approved.
pub async fn unmount(attempt: &mut Attempt<'_>, mut failures: Vec<Failure>) -> Result<(), Vec<Failure>> {
    // A kubelet restarts a pod that only a request has stopped, and that still has its volumes.
    if !attempt.worker.terminates_by_api() || failures.iter().any(|failure| failure.step != Step::Sandbox) {
        return Err(failures);
    }
    match unmount_if_no_process_is_left(attempt).await {
        Ok(true) if failures.iter().all(|failure| names_network(&failure.cause)) => check_approved(attempt, failures),
        Ok(_) => Err(failures),
        Err(more) => {
            failures.extend(more);
            Err(failures)
        }
    }
}

/// Whether nothing of the pod runs, and no volume is left.
async fn unmount_if_no_process_is_left(attempt: &mut Attempt<'_>) -> Result<bool, Vec<Failure>> {
    let worker = attempt.worker;
    attempt.stopped.pod = Arc::new(worker.query(attempt.view(), Step::Volumes, AFTER_STOP).await?);
    // For a virtual machine, the runtime shows a ready sandbox.
    if worker.is_canceled() || attempt.stopped.pod.may_run() {
        return Ok(false);
    }
    survivors::run(attempt).await?;
    if worker.record_safe_point(true).is_err() {
        return Ok(false);
    }
    if !attempt.is_gone {
        exits::record(attempt).await;
        exits::sync(attempt).await?;
    }
    volumes::run(attempt).await?;
    Ok(true)
}

/// Only the network of the pod may be left.
fn check_approved(attempt: &Attempt<'_>, mut failures: Vec<Failure>) -> Result<(), Vec<Failure>> {
    let (context, pod) = (&attempt.worker.context, &attempt.view().pod);
    let mut checks = attempt.worker.runtime_state.lock();
    let since = *checks.network_failed_since.get_or_insert_with(Instant::now);
    drop(checks);
    let sandboxes = attempt.stopped.pod.sandboxes.iter();
    let sandboxes = sandboxes.map(|sandbox| format!("sandbox {}", sandbox.id));
    let mismatch = Mismatch::new(MismatchKind::NetworkNotRemoved, sandboxes);
    if mismatch.is_approved_by(&context.journal.approvals(&pod.uid), &context.node.clock.boot_id) {
        tracing::warn!("Network of the pod is not taken down; the teardown continues, as a user has approved");
        return Ok(());
    }
    if since.elapsed() >= OFFER_AFTER
        && let Some(failure) = failures.first_mut()
    {
        failure.cause += &format!(
            ". Nothing of the pod runs, and no volume is left. Restore the network plugin and its configuration \
             ({NETWORK_CONFIGURATION}), or approve that the object is deleted without it: pod-teardown approve pod/{pod}"
        );
        failure.mismatch = Some(mismatch);
    }
    Err(failures)
}
