//! Exit codes of the containers: read, recorded in the journal, and durable before what they are read from is removed. Recorded exits
//! are for the status only: what is stopped or removed depends on what is observed.

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    sync::atomic::Ordering,
};

use k8s_openapi::api::core::v1::PodStatus;

use crate::{
    journal::{ContainerExit, Exits},
    model::{
        failure::Failure,
        pod::container_statuses,
        trace::{Stage, Step},
    },
    node::cri::types::{Container, ContainerState, RuntimePod},
    teardown::{attempt::Attempt, status::Messages, termination_message},
};

/// A status shows the last two exits of each container.
const SHOWN: usize = 2;
/// Bytes of the runtime's message. All messages in a pod's status have this limit together.
const LONGEST_MESSAGE: usize = 12 * 1024;
/// After so many failed reads an exit code counts as unknown.
const MAX_READS: u32 = 5;

/// # Errors
/// As long as the exit code of a container may still be read. After [`MAX_READS`] attempts it is unknown.
pub async fn check_read(attempt: &Attempt<'_>) -> Result<(), Vec<Failure>> {
    let (worker, stopped) = (attempt.worker, &attempt.stopped.pod);
    let exits = worker.context.journal.exits(&attempt.view().pod.uid);
    if unread(stopped, &exits, None).is_none() {
        return Ok(());
    }
    // The API may have an exit that the runtime does not.
    let latest = attempt.latest().await.ok();
    let status = latest.as_ref().and_then(|latest| latest.object.status());
    let Some(name) = unread(stopped, &exits, status) else {
        return Ok(());
    };
    let reads = worker.failed_reads.fetch_add(1, Ordering::Relaxed) + 1;
    if reads >= MAX_READS {
        tracing::warn!(
            container = name,
            reads,
            "Exit code of a container cannot be read; it is unknown"
        );
        return Ok(());
    }
    let why = format!(
        "its exit code cannot be read from the runtime (attempt {reads} of {MAX_READS}); after that it counts as unknown"
    );
    Err(vec![Failure::new(Step::Status, name, why)])
}

/// Records the exits, so that the status is complete even if the runtime forgets the containers. It does not wait for the disk:
/// most often the API server has the status at once.
pub async fn record(attempt: &Attempt<'_>) {
    let exited: Vec<_> = unrecorded(attempt).cloned().collect();
    if exited.is_empty() {
        return;
    }
    let context = &attempt.worker.context;
    let read = move || exited.iter().map(read_exit).collect::<Exits>();
    match context.node.reads.run_blocking(read).await {
        Ok(exits) => context.journal.record_exits(&attempt.view().pod.uid, exits),
        Err(error) => {
            tracing::error!(%error, "Exits of containers are not recorded: if the runtime forgets them, their exit codes are unknown");
        }
    }
}

/// Exited containers that the journal should have, and lacks.
fn unrecorded<'a>(attempt: &'a Attempt<'_>) -> impl Iterator<Item = &'a Container> {
    let known = attempt.worker.context.journal.exits(&attempt.view().pod.uid);
    let exited = exited(&attempt.observed.pod, &attempt.stopped.pod);
    exited.filter(move |container| !known.contains_key(&container.id))
}

/// Waits until the disk has the exits with their termination messages.
///
/// # Errors
/// If one could not be read, or the journal cannot be written.
pub async fn sync(attempt: &Attempt<'_>) -> Result<(), Vec<Failure>> {
    const WHAT: &str = "the exits of the containers";
    if let Some(container) = unrecorded(attempt).next() {
        return Err(not_durable(WHAT, &format_args!("{} could not be read", container.name)));
    }
    sync_journal(attempt, WHAT).await
}

/// Waits until the disk has all changes of the journal. `what` is for the error.
async fn sync_journal(attempt: &Attempt<'_>, what: &str) -> Result<(), Vec<Failure>> {
    let recorded = attempt.worker.sync_journal("exits").await;
    recorded.map_err(|error| not_durable(what, &error))
}

fn not_durable(what: &str, why: &dyn Display) -> Vec<Failure> {
    let why = format!("the node is not cleaned up until the journal on disk has recorded {what}: {why}");
    vec![Failure::new(Step::Status, "", why)]
}

/// Waits until the disk has the stop: the next steps rely on it.
///
/// # Errors
/// If it has not: nothing is removed before.
pub async fn make_durable(attempt: &mut Attempt<'_>) -> Result<(), Vec<Failure>> {
    if attempt.stopped.is_overruled {
        // The cgroup shows that the runtime is wrong. After its removal only the journal does.
        sync_journal(attempt, "that the kernel's state counts").await?;
    }
    if attempt.failures.is_empty() {
        attempt.enter_stage(Stage::Terminated);
        return Ok(());
    }
    // The API server does not have these exit codes.
    sync(attempt).await
}

/// Containers that have exited before or after the stop, as far as a status may show them.
fn exited<'a>(before: &'a RuntimePod, stopped: &'a RuntimePod) -> impl Iterator<Item = &'a Container> {
    let has_exited = |container: &&Container| container.state == ContainerState::Exited && !container.is_unread;
    in_status(before, stopped).filter(has_exited)
}

/// The first container in the status whose exit neither the runtime, the journal nor the API server has.
fn unread<'a>(stopped: &'a RuntimePod, exits: &Exits, shown: Option<&PodStatus>) -> Option<&'a str> {
    let statuses = shown.into_iter().flat_map(container_statuses);
    let states = statuses.flat_map(|entry| [&entry.state, &entry.last_state].into_iter().flatten());
    let ids = states.filter_map(|state| state.terminated.as_ref()?.container_id.as_deref()?.split_once("://"));
    let ids: BTreeSet<_> = ids.map(|(_, id)| id).collect();
    let unknown = |it: &&Container| !exits.contains_key(&it.id) && !ids.contains(it.id.as_str());
    let exited = |it: &&Container| it.state == ContainerState::Exited && it.is_unread;
    let mut unread = in_status(stopped, stopped).filter(exited).filter(unknown);
    unread.next().map(|container| container.name.as_str())
}

/// The instances that a status shows: the last two of each container.
fn in_status<'a>(before: &'a RuntimePod, stopped: &'a RuntimePod) -> impl Iterator<Item = &'a Container> {
    let is_removed = |container: &&Container| stopped.containers.iter().all(|other| other.id != container.id);
    let removed = before.containers.iter().filter(is_removed);
    let mut all: Vec<_> = stopped.containers.iter().chain(removed).collect();
    all.sort_by_key(|container| Reverse(container.created_at));
    let mut seen = BTreeMap::<&str, usize>::new();
    all.into_iter().filter(move |container| {
        let count = seen.entry(&container.name).or_default();
        *count += 1;
        *count <= SHOWN
    })
}

/// The exit of a container, with its termination message. Blocks on local disks only.
fn read_exit(container: &Container) -> (String, ContainerExit) {
    let mut exited = container.clone();
    let limit = exited.message.floor_char_boundary(LONGEST_MESSAGE);
    exited.message.truncate(limit);
    // A failure is reported when the status is sent.
    let exit = ContainerExit::new(exited, termination_message::read(container).ok());
    (container.id.clone(), exit)
}

/// Adds recorded exits of containers that the runtime has forgotten, or whose state or exit code it cannot report. An exited container
/// never runs again.
pub fn with_exits<'a>(observed: &'a RuntimePod, exits: &Exits) -> Cow<'a, RuntimePod> {
    let knows = |id: &str| {
        let seen = observed.containers.iter().find(|container| container.id == id);
        let is_known = |it: &Container| match it.state {
            ContainerState::Unknown => false,
            ContainerState::Exited => !it.is_unread,
            ContainerState::Created | ContainerState::Running => true,
        };
        seen.is_some_and(is_known)
    };
    let lost = exits.iter().filter(|(id, _)| !knows(id));
    let lost: Vec<_> = lost.map(|(_, exit)| exit.container.clone()).collect();
    if lost.is_empty() {
        return Cow::Borrowed(observed);
    }
    let mut containers = observed.containers.clone();
    containers.retain(|container| lost.iter().all(|lost| lost.id != container.id));
    containers.extend(lost);
    containers.sort_by_key(|container| Reverse(container.created_at));
    Cow::Owned(RuntimePod {
        sandboxes: observed.sandboxes.clone(),
        containers,
    })
}

/// The recorded termination messages.
pub fn messages(exits: &Exits) -> Messages {
    let exits = exits.iter();
    let messages = exits.filter_map(|(id, exit)| Some((id.clone(), exit.termination_message.clone()?)));
    messages.filter(|(_, text)| !text.is_empty()).collect()
}

#[cfg(test)]
mod tests;
