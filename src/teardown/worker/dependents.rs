//! A pod that other pods need for their termination, such as a CSI driver or the network plugin, terminates after them, at most
//! `--driver-hold` later.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Worker, YieldReason, termination};
use crate::{
    model::{
        event::Reason,
        failure::{Failure, first_message},
        pod::{PodRef, PodView},
        trace::{Blocked, BlockedReason, Stage, Step},
    },
    node::cri::types::RuntimePod,
    teardown::{drivers, grace, journal::PodJournalExt as _, node_service::is_node_service},
    words::some_of,
};

/// How often is checked whether other pods still need it.
const INTERVAL: Duration = Duration::from_secs(2);
/// All pods of a node may be deleted one after another, this one first. So it waits at least this long.
const SETTLING_TIME: Duration = INTERVAL.saturating_mul(2);

/// Other pods that are terminating and need a pod.
struct Dependents {
    /// Namespaces and names.
    pods: Vec<String>,
    /// What they need it as, with an article.
    role: &'static str,
}

impl Worker {
    /// Waits while other pods that are terminating need this one, at most for `--driver-hold`. The grace period of this pod
    /// begins only after that.
    ///
    /// # Errors
    /// If the agent stops, or nothing may begin.
    pub(super) async fn wait_for_dependents(
        &self,
        view: &PodView,
        runtime_pod: &RuntimePod,
    ) -> Result<(), YieldReason> {
        // Without a running container it serves no other pod. A termination that has begun is not interrupted.
        if !runtime_pod.may_run() || self.period.has_begun() || self.context.node.effects.is_dry_run() {
            return Ok(());
        }
        let began = Instant::now();
        let mut reported = String::new();
        loop {
            let is_settled = began.elapsed() >= SETTLING_TIME;
            let (words, may_be_none) = match self.dependents(view, is_settled).await {
                Ok(None) => break,
                Ok(Some(Dependents { pods, .. })) if pods.is_empty() && is_settled => break,
                Ok(Some(Dependents { pods, role })) if pods.is_empty() => {
                    let words = format!("pods that were deleted just now may need this pod as {role}");
                    (words, true)
                }
                Ok(Some(Dependents { pods, role })) => {
                    let words = format!(
                        "terminating pods need this pod as {role}: {}",
                        some_of(pods.into_iter())
                    );
                    (words, false)
                }
                Err(failures) => {
                    let why = first_message(&failures);
                    let words = format!("cannot find the terminating pods that need this pod: {why}");
                    (words, false)
                }
            };
            let now = self.context.node.clock.now();
            let since = self.context.journal.record_wait(&view.pod.uid, now.clone());
            if grace::used(&since, &now) >= self.context.driver_hold {
                if !may_be_none {
                    let message = format!("--driver-hold has expired, and the pod terminates; {words}");
                    tracing::warn!(message);
                    self.context
                        .events
                        .event(view, None, Reason::DriverHoldExceeded, &message);
                }
                break;
            }
            if words != reported {
                tracing::info!(why = words, "Termination waits for other pods");
            }
            self.recorder
                .set_blocked(vec![Blocked::pod(BlockedReason::Dependents, words.as_str())]);
            reported = words;
            if self.context.gate.why_no_new_work().is_some() {
                return Err(YieldReason::NoNewWork);
            }
            tokio::select! {
                biased;
                () = self.context.stopping.cancelled() => return Err(YieldReason::Stopping),
                () = sleep(INTERVAL) => {}
            }
        }
        self.recorder.set_blocked(Vec::new());
        // The disk must not show that it waits when it is stopped.
        if self
            .context
            .journal
            .pod(&view.pod.uid)
            .is_some_and(|entry| entry.waits_for_dependents)
        {
            let now = self.context.node.clock.now();
            self.context.journal.record_grace_from(&view.pod.uid, now);
            self.sync_beginning().await;
        }
        Ok(())
    }

    /// The terminating pods that need this one; `None` if it is neither a driver nor a node service. If no worker has such a pod and
    /// `confirm` is set, it also lists all pods of the node: the watch may not have reported a deletion yet.
    async fn dependents(&self, view: &PodView, confirm: bool) -> Result<Option<Dependents>, Vec<Failure>> {
        let users = drivers::users_of(&self.context, view).await?;
        let is_service = is_node_service(view);
        let role = match (&users, is_service) {
            (None, false) => return Ok(None),
            (Some(_), false) => "a driver",
            (_, true) => "a node service",
        };
        let uses = |other: &PodView| users.as_ref().is_some_and(|users| users.include(&self.context, other));
        // Node services do not wait for each other.
        let needs = |other: &PodView| is_service && !is_node_service(other) || uses(other);
        let known = (self.context.terminating)().await;
        let with_worker = known.values().filter(|other| needs(other)).map(|other| &other.pod);
        // After a restart the journal has some before the workers do. It does not have their spec: one whose containers are not
        // stopped counts as no node service. The wait ends after `--driver-hold` at the latest.
        let journal = &self.context.journal;
        let may_run = |other: &PodView| {
            let entry = journal
                .pod(&other.pod.uid)
                .filter(|_| !known.contains_key(&other.pod.uid));
            entry.is_some_and(|entry| entry.stage == Stage::Terminating)
        };
        let begun = journal.unfinished().into_iter();
        let begun = begun.filter(|other| uses(other) || is_service && may_run(other));
        let pods = named(view, with_worker.cloned().chain(begun.map(|other| other.pod)));
        if !pods.is_empty() || !confirm {
            return Ok(Some(Dependents { pods, role }));
        }
        // A pod with a terminal phase and without a worker counts only by what is on the node.
        let needs = |other: &PodView| uses(other) || !other.terminal_phase && needs(other);
        let is_waited_for = |other: &PodView| termination::cause(other, false, false).is_some() && needs(other);
        let mut waited_for = Vec::new();
        let mut each = |other: PodView| waited_for.extend(is_waited_for(&other).then_some(other.pod));
        let listed = self.context.api.each_pod(&mut each).await;
        listed.map_err(|error| vec![error.failure(Step::Term)])?;
        let pods = named(view, waited_for.into_iter());
        Ok(Some(Dependents { pods, role }))
    }
}

/// Namespaces and names of these pods but for `view` itself.
fn named(view: &PodView, pods: impl Iterator<Item = PodRef>) -> Vec<String> {
    let others = pods.filter(|pod| pod.uid != view.pod.uid);
    let by_uid: BTreeMap<_, _> = others.map(|pod| (pod.uid.clone(), pod)).collect();
    by_uid.values().map(ToString::to_string).collect()
}
