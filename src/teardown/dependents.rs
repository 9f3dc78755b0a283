//! The terminating pods that need a pod, such as a CSI driver or the network plugin, which terminates after them.

use std::collections::BTreeMap;

use super::{context::Context, drivers, journal::PodJournalExt as _, node_service::is_node_service};
use crate::model::{
    failure::Failure,
    pod::{PodRef, PodView},
    termination,
    trace::{Stage, Step},
};

/// Other pods that are terminating and need a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependents {
    /// Namespaces and names.
    pub pods: Vec<String>,
    /// What they need it as, with an article.
    pub role: &'static str,
}

/// The terminating pods that need this one; `None` if it is neither a driver nor a node service. If no worker has such a pod and
/// `confirm` is set, it also lists all pods of the node: the watch may not have reported a deletion yet.
pub(super) async fn dependents(
    context: &Context,
    view: &PodView,
    confirm: bool,
) -> Result<Option<Dependents>, Vec<Failure>> {
    let users = drivers::users_of(context, view).await?;
    let is_service = is_node_service(view);
    let role = match (&users, is_service) {
        (None, false) => return Ok(None),
        (Some(_), false) => "a driver",
        (_, true) => "a node service",
    };
    let uses = |other: &PodView| users.as_ref().is_some_and(|users| users.include(context, other));
    // Node services do not wait for each other.
    let needs = |other: &PodView| is_service && !is_node_service(other) || uses(other);
    let known = (context.terminating)().await;
    let with_worker = known.values().filter(|other| needs(other)).map(|other| &other.pod);
    // After a restart the journal has some before the workers do. It does not have their spec: one whose containers are not
    // stopped counts as no node service. The wait ends after `--driver-hold` at the latest.
    let journal = &context.journal;
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
    let is_waited_for = |other: &PodView| termination::cause(other, false).is_some() && needs(other);
    let mut waited_for = Vec::new();
    let mut each = |other: PodView| waited_for.extend(is_waited_for(&other).then_some(other.pod));
    let listed = context.api.each_pod(&mut each).await;
    listed.map_err(|error| vec![error.failure(Step::Term)])?;
    let pods = named(view, waited_for.into_iter());
    Ok(Some(Dependents { pods, role }))
}

/// Namespaces and names of these pods but for `view` itself.
fn named(view: &PodView, pods: impl Iterator<Item = PodRef>) -> Vec<String> {
    let others = pods.filter(|pod| pod.uid != view.pod.uid);
    let by_uid: BTreeMap<_, _> = others.map(|pod| (pod.uid.clone(), pod)).collect();
    by_uid.values().map(ToString::to_string).collect()
}
