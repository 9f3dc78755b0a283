//! Recorded exits of containers that the runtime has forgotten. For the status only: what is stopped or removed depends on what is
//! observed.

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use k8s_openapi::api::core::v1::PodStatus;

use super::{
    exits::{ContainerExit, Exits},
    status::Messages,
    termination_message::TerminationMessage,
};
use crate::{
    model::pod::container_statuses,
    node::cri::types::{Container, ContainerState, RuntimePod},
};

/// A status shows the last two exits of each container.
const SHOWN: usize = 2;
/// Bytes of the runtime's message. All messages in a pod's status have this limit together.
const LONGEST_MESSAGE: usize = 12 * 1024;

/// Containers that have exited before or after the stop, as far as a status may show them.
pub fn exited<'a>(before: &'a RuntimePod, stopped: &'a RuntimePod) -> impl Iterator<Item = &'a Container> {
    let has_exited = |container: &&Container| container.state == ContainerState::Exited && !container.is_unread;
    in_status(before, stopped).filter(has_exited)
}

/// The first container in the status whose exit neither the runtime, the journal nor the API server has.
pub fn unread<'a>(stopped: &'a RuntimePod, exits: &Exits, shown: Option<&PodStatus>) -> Option<&'a str> {
    let statuses = shown.into_iter().flat_map(container_statuses);
    let states = statuses.flat_map(|entry| [&entry.state, &entry.last_state].into_iter().flatten());
    let ids: BTreeSet<_> = states
        .filter_map(|state| state.terminated.as_ref()?.container_id.as_deref()?.split_once("://"))
        .map(|(_, id)| id)
        .collect();
    let unknown = |it: &&Container| !exits.contains_key(&it.id) && !ids.contains(it.id.as_str());
    let exited = |it: &&Container| it.state == ContainerState::Exited && it.is_unread;
    let mut unread = in_status(stopped, stopped).filter(exited).filter(unknown);
    unread.next().map(|container| container.name.as_str())
}

/// The instances that a status shows: the last two of each container.
fn in_status<'a>(before: &'a RuntimePod, stopped: &'a RuntimePod) -> impl Iterator<Item = &'a Container> {
    let removed = before
        .containers
        .iter()
        .filter(|container| stopped.containers.iter().all(|other| other.id != container.id));
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
pub fn read(container: &Container) -> (String, ContainerExit) {
    let mut message = container.message.clone();
    message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
    let exit = ContainerExit {
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
        // A failure is reported when the status is sent.
        termination_message: TerminationMessage::for_container(container).read().ok(),
    };
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
    let lost: Vec<_> = exits
        .iter()
        .filter(|(id, _)| !knows(id))
        .map(|(id, exit)| container(id, exit))
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

/// The recorded termination messages.
pub fn messages(exits: &Exits) -> Messages {
    let messages = exits
        .iter()
        .filter_map(|(id, exit)| Some((id.clone(), exit.termination_message.clone()?)));
    messages.collect()
}

fn container(id: &str, exit: &ContainerExit) -> Container {
    let exit = exit.clone();
    Container {
        id: id.to_owned(),
        name: exit.name,
        attempt: exit.attempt,
        sandbox_id: exit.sandbox_id,
        state: ContainerState::Exited,
        created_at: exit.created_at,
        started_at: exit.started_at,
        finished_at: exit.finished_at,
        exit_code: exit.exit_code,
        reason: exit.reason,
        message: exit.message,
        image: exit.image,
        image_ref: exit.image_ref,
        restart_count: exit.restart_count,
        // It was read before, and may have been removed.
        termination_message_file: None,
        message_falls_back_to_log: false,
        log_path: String::new(),
        is_unread: false,
    }
}

#[cfg(test)]
mod tests;
