//! Before the steps: what the runtime and the node show of the pod.

use std::{sync::Arc, time::Duration};

use super::overrule;
use crate::{
    model::{
        failure::Failure,
        pod::{ApiObject, PodView},
        trace::{Stage, Step},
    },
    teardown::{
        attempt::{Attempt, Observed, PodUpdate, Worker},
        evidence,
    },
};

/// Longest wait for a container's status before the stop: other containers must not wait for their stop.
const BEFORE_STOP: Duration = Duration::from_secs(2);

/// Begins an attempt.
///
/// # Errors
/// If the runtime does not answer, if runtime, cgroups and directories do not agree, or if an unread object cannot be read.
pub async fn begin<'w>(worker: &'w Worker, update: &PodUpdate) -> Result<Attempt<'w>, Vec<Failure>> {
    let observed = observe(worker, &update.view).await?;
    let update = with_object(worker, update).await?;
    Ok(Attempt {
        worker,
        stopped_first: None,
        is_gone: update.view.object.is_absent(),
        update,
        stopped: observed.clone(),
        observed,
        api_status: None,
        is_terminal: false,
        failures: Vec::new(),
    })
}

async fn observe(worker: &Worker, view: &Arc<PodView>) -> Result<Observed, Vec<Failure>> {
    let clock = &worker.context.node.clock;
    // Durable together with the beginning of the grace period, and so before anything is stopped.
    worker.context.journal.record_attempt(&view.pod.uid, clock.now());
    // The containers of a terminated pod are not stopped again.
    let step = match worker.recorder.stage() {
        Stage::Terminating => Step::Term,
        Stage::Terminated => Step::Volumes,
        Stage::Deleted | Stage::Finished => Step::Cleanup,
    };
    let began = clock.now().since_boot;
    let (pod, ()) = tokio::join!(worker.query(view, step, BEFORE_STOP), worker.sync_beginning());
    let mut pod = pod?;
    worker.runtime_state.lock().record_running(&pod, began);
    let is_overruled = overrule::is_overruled(worker, view, &pod).await;
    if is_overruled {
        pod = pod.with_all_exited();
    }
    let pod = Arc::new(pod);
    let runtime_pod = Arc::clone(&pod);
    let check = move |context: &_, view: &_| evidence::check_agreement(context, view, step, &runtime_pod);
    worker.on_node(view, step, check).await?;
    Ok(Observed { pod, is_overruled })
}

/// The update with what the stop needs of an unread object. A large one is not kept: the grace period may be long.
async fn with_object(worker: &Worker, update: &PodUpdate) -> Result<PodUpdate, Vec<Failure>> {
    let mut update = update.clone();
    if matches!(update.view.object, ApiObject::Unread) {
        let object = Box::pin(worker.read_object(&update.view.pod)).await?;
        update.view = Arc::new(PodView::for_stop(object));
    }
    Ok(update)
}
