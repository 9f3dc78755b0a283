//! What was seen of a pod in the runtime while it terminated. Containers that the kubelet has removed stay. Pure.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap, HashSet},
};

use k8s_openapi::api::core::v1::PodStatus;

use crate::{
    model::pod::{container_statuses, is_running},
    node::cri::types::{Container, ContainerState, RuntimePod},
    teardown::status::Messages,
};

/// Containers of one name that are kept: a status shows the last two.
const MAX_PER_NAME: usize = 2;

/// What was seen so far.
#[derive(Debug, Clone, Default)]
pub(super) struct SeenRuntime {
    pod: RuntimePod,
    messages: Messages,
    /// IDs in the last read.
    present: BTreeSet<String>,
    /// Exited containers whose status is being read.
    reading: BTreeSet<String>,
}

// === impl SeenRuntime ===

impl SeenRuntime {
    /// Adds the pod as a list shows it. Returns the exited containers whose status has to be read.
    pub fn add_listed(&mut self, listed: RuntimePod) -> Vec<Container> {
        self.add(listed);
        let unread =
            |it: &&Container| it.state == ContainerState::Exited && it.is_unread && self.present.contains(&it.id);
        let mut unread: Vec<_> = self.pod.containers.iter().filter(unread).cloned().collect();
        unread.retain(|it| self.reading.insert(it.id.clone()));
        unread
    }

    /// Adds the status of an exited container, unless it could not be read.
    pub fn add_exit(&mut self, id: &str, exit: Option<(Container, Messages)>) {
        self.reading.remove(id);
        let Some((container, messages)) = exit else { return };
        self.messages.extend(messages);
        if let Some(listed) = self.pod.containers.iter_mut().find(|it| it.id == id) {
            *listed = container;
        }
    }

    /// Whether the status of an exited container is being read.
    pub fn is_reading(&self) -> bool {
        !self.reading.is_empty()
    }

    /// Whether there is any container that has exited.
    pub fn has_exits(&self) -> bool {
        self.pod.containers.iter().any(|it| it.state == ContainerState::Exited)
    }

    /// Adds the pod as a list shows it. What was read of an exited container stays.
    pub fn add(&mut self, read: RuntimePod) {
        let containers = read.containers.iter().map(|it| it.id.clone());
        let sandboxes = read.sandboxes.iter().map(|it| it.id.clone());
        self.present = containers.chain(sandboxes).collect();
        let read = read.with_exits_from(&self.pod);
        let RuntimePod {
            mut sandboxes,
            mut containers,
        } = std::mem::take(&mut self.pod);
        containers.retain(|it| !self.present.contains(&it.id));
        containers.extend(read.containers);
        containers.sort_by(|a, b| newer(a).cmp(&newer(b)).then_with(|| a.id.cmp(&b.id)));
        let mut names = HashMap::<String, usize>::new();
        containers.retain(|it| {
            let count = names.entry(it.name.clone()).or_default();
            *count += 1;
            *count <= MAX_PER_NAME
        });
        sandboxes.retain(|it| !self.present.contains(&it.id));
        // A removed sandbox was stopped before.
        for sandbox in &mut sandboxes {
            sandbox.is_ready = false;
        }
        sandboxes.extend(read.sandboxes);
        sandboxes.sort_by_key(|it| (Reverse(it.attempt), Reverse(it.created_at), it.id.clone()));
        self.pod = RuntimePod { sandboxes, containers };
    }

    /// Everything that was seen.
    pub fn pod(&self) -> &RuntimePod {
        &self.pod
    }

    /// The termination messages.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// Why the end of a container is not known, if so. Only the newest container of each name counts. `before` is the status from
    /// before the termination: its containers that ran must have been seen.
    pub fn unseen_exit(&self, before: Option<&PodStatus>) -> Option<String> {
        let ran = before.into_iter().flat_map(container_statuses);
        let ran = ran.filter(|it| is_running(it));
        let is_unseen = |name: &str| self.pod.containers.iter().all(|it| it.name != name);
        if let Some(unseen) = ran.map(|it| it.name.as_str()).find(|name| is_unseen(name)) {
            return Some(format!("the kubelet removed container {unseen} before it was seen"));
        }
        let mut names = HashSet::new();
        let newest = self.pod.containers.iter().filter(|it| names.insert(it.name.as_str()));
        let mut reasons = newest.filter_map(|it| self.why_unseen(it));
        reasons.next()
    }

    fn why_unseen(&self, container: &Container) -> Option<String> {
        let name = &container.name;
        match (container.state, self.present.contains(&container.id)) {
            (ContainerState::Running | ContainerState::Unknown, false) => {
                Some(format!("the kubelet removed container {name} before its exit was seen"))
            }
            (ContainerState::Running | ContainerState::Unknown, true) => Some(format!("container {name} still runs")),
            (ContainerState::Exited, _) if container.is_unread => {
                Some(format!("the status of container {name} could not be read"))
            }
            (ContainerState::Exited | ContainerState::Created, _) => None,
        }
    }
}

fn newer(container: &Container) -> (Reverse<jiff::Timestamp>, Reverse<u32>) {
    (Reverse(container.created_at), Reverse(container.attempt))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, state: ContainerState, code: i32) -> Container {
        Container {
            exit_code: code,
            is_unread: false,
            ..Container::listed(name, state)
        }
    }

    fn read(containers: Vec<Container>) -> RuntimePod {
        RuntimePod {
            sandboxes: Vec::new(),
            containers,
        }
    }

    #[test]
    fn removed_container_keeps_its_exit_and_one_whose_exit_was_not_seen_is_named() {
        let (running, exited) = (ContainerState::Running, ContainerState::Exited);
        let mut seen = SeenRuntime::default();
        let listed = |state| Container::listed("a", state);
        let both = |state| read(vec![listed(state), container("b", running, 0)]);
        assert!(seen.add_listed(both(running)).is_empty());
        assert_eq!(seen.unseen_exit(None).as_deref(), Some("container a still runs"));
        let unread = seen.add_listed(both(exited));
        assert!(matches!(&unread[..], [it] if it.name == "a") && seen.is_reading());
        assert!(seen.add_listed(both(exited)).is_empty(), "it is being read");
        seen.add_exit(
            "a-0",
            Some((
                container("a", exited, 3),
                Messages::from([("a-0".to_owned(), "bye".to_owned())]),
            )),
        );
        assert!(!seen.is_reading());
        assert!(seen.add_listed(both(exited)).is_empty(), "it was read");
        seen.add(read(vec![container("b", exited, 0)]));
        assert_eq!(seen.unseen_exit(None), None);
        let a = seen.pod().newest("a").unwrap();
        assert_eq!(
            (a.state, a.exit_code, seen.messages().get("a-0").map(String::as_str)),
            (exited, 3, Some("bye"))
        );
        let mut gone = SeenRuntime::default();
        gone.add(both(running));
        gone.add(read(vec![container("b", exited, 0)]));
        let why = gone.unseen_exit(None);
        assert_eq!(
            why.as_deref(),
            Some("the kubelet removed container a before its exit was seen")
        );
        // A status that cannot be read any more does not erase what was read.
        let unread = Container {
            is_unread: true,
            ..container("b", exited, 137)
        };
        gone.add(read(vec![unread]));
        assert_eq!(gone.pod().newest("b").map(|it| it.exit_code), Some(0));
    }
}
