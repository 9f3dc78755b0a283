//! Containers whose end is known, although the runtime has forgotten them. For the status only: what still runs, and what
//! may be removed, is decided by what is seen.

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use k8s_openapi::api::core::v1::PodStatus;

use super::{
    ends::{ContainerEnd, Ends},
    status::Messages,
    termination_message::TerminationMessage,
};
use crate::node::cri::types::{Container, ContainerState, RuntimePod};

/// A status shows the newest end of each container, and the one before it.
const SHOWN: usize = 2;
/// Bytes of the runtime's own message; all messages of a pod share as many in its status.
const LONGEST_MESSAGE: usize = 12 * 1024;

/// Containers that have ended, as they were seen before the stop and after it, as far as a status may show them.
pub fn worth_keeping<'a>(before: &'a RuntimePod, stopped: &'a RuntimePod) -> impl Iterator<Item = &'a Container> {
    let ended = |container: &&Container| container.state == ContainerState::Exited && !container.is_unread;
    in_status(before, stopped).filter(ended)
}

/// Names of containers whose end a status has to show, while neither the runtime, the journal nor the API server tells it.
pub fn unread<'a>(stopped: &'a RuntimePod, ends: &Ends, shown: Option<&PodStatus>) -> Option<&'a str> {
    let statuses = shown.into_iter().flat_map(|status| {
        let lists = [
            &status.container_statuses,
            &status.init_container_statuses,
            &status.ephemeral_container_statuses,
        ];
        lists.into_iter().flatten().flatten()
    });
    let states = statuses.flat_map(|entry| [&entry.state, &entry.last_state].into_iter().flatten());
    let ids: BTreeSet<_> = states
        .filter_map(|state| state.terminated.as_ref()?.container_id.as_deref()?.split_once("://"))
        .map(|(_, id)| id)
        .collect();
    let unknown = |it: &&Container| !ends.contains_key(&it.id) && !ids.contains(it.id.as_str());
    let ended = |it: &&Container| it.state == ContainerState::Exited && it.is_unread;
    let mut unread = in_status(stopped, stopped).filter(ended).filter(unknown);
    unread.next().map(|container| container.name.as_str())
}

/// The instances that a status shows: the newest of each container, and the one before it.
fn in_status<'a>(before: &'a RuntimePod, stopped: &'a RuntimePod) -> impl Iterator<Item = &'a Container> {
    let gone = before
        .containers
        .iter()
        .filter(|container| stopped.containers.iter().all(|other| other.id != container.id));
    let mut all: Vec<_> = stopped.containers.iter().chain(gone).collect();
    all.sort_by_key(|container| Reverse(container.created_at));
    let mut seen = BTreeMap::<&str, usize>::new();
    all.into_iter().filter(move |container| {
        let count = seen.entry(&container.name).or_default();
        *count += 1;
        *count <= SHOWN
    })
}

/// The end of a container that has ended, with its last words. Blocks on local disks only.
pub fn end(container: &Container) -> (String, ContainerEnd) {
    let mut message = container.message.clone();
    message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
    let end = ContainerEnd {
        name: container.name.clone(),
        attempt: container.attempt,
        restart_count: container.restart_count,
        sandbox_id: container.sandbox_id.clone(),
        created_at: container.created_at,
        started_at: container.started_at,
        finished_at: container.finished_at,
        exit_code: container.exit_code,
        reason: container.reason.clone(),
        message,
        image: container.image.clone(),
        image_ref: container.image_ref.clone(),
        // Why it cannot be read is told when the status is sent.
        last_words: TerminationMessage::of(container).read().ok(),
    };
    (container.id.clone(), end)
}

/// What the runtime knows, and what is remembered of containers that it has lost. What is seen counts, unless it is that
/// the runtime cannot tell, or cannot be read: what has ended never runs again.
pub fn with_ends<'a>(observed: &'a RuntimePod, ends: &Ends) -> Cow<'a, RuntimePod> {
    let knows = |id: &str| {
        let seen = observed.containers.iter().find(|container| container.id == id);
        let is_known = |it: &Container| match it.state {
            ContainerState::Unknown => false,
            ContainerState::Exited => !it.is_unread,
            ContainerState::Created | ContainerState::Running => true,
        };
        seen.is_some_and(is_known)
    };
    let lost: Vec<_> = ends
        .iter()
        .filter(|(id, _)| !knows(id))
        .map(|(id, end)| container(id, end))
        .collect();
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

/// The last words that are remembered.
pub fn messages(ends: &Ends) -> Messages {
    let words = ends
        .iter()
        .filter_map(|(id, end)| Some((id.clone(), end.last_words.clone()?)));
    words.collect()
}

fn container(id: &str, end: &ContainerEnd) -> Container {
    let end = end.clone();
    Container {
        id: id.to_owned(),
        name: end.name,
        attempt: end.attempt,
        sandbox_id: end.sandbox_id,
        state: ContainerState::Exited,
        created_at: end.created_at,
        started_at: end.started_at,
        finished_at: end.finished_at,
        exit_code: end.exit_code,
        reason: end.reason,
        message: end.message,
        image: end.image,
        image_ref: end.image_ref,
        restart_count: end.restart_count,
        // What was there has been read, and may be gone by now.
        termination_message_file: None,
        message_falls_back_to_log: false,
        log_path: String::new(),
        is_unread: false,
    }
}

#[cfg(test)]
mod tests;
