use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

fn instance(id: &str, name: &str, created: i64, state: ContainerState) -> Container {
    Container {
        id: id.to_owned(),
        name: name.to_owned(),
        attempt: 1,
        sandbox_id: "s".to_owned(),
        state,
        created_at: Timestamp::from_second(created).unwrap(),
        started_at: Timestamp::from_second(created + 1).ok(),
        finished_at: Timestamp::from_second(created + 2).ok(),
        exit_code: 7,
        reason: "Error".to_owned(),
        message: "said by the runtime".to_owned(),
        image: "image".to_owned(),
        image_ref: "sha256:1".to_owned(),
        restart_count: 1,
        termination_message_file: None,
        message_falls_back_to_log: false,
        log_path: String::new(),
        is_unread: false,
    }
}

fn pod(containers: Vec<Container>) -> RuntimePod {
    RuntimePod {
        sandboxes: Vec::new(),
        containers,
    }
}

fn ids(pod: &RuntimePod) -> Vec<&str> {
    pod.containers.iter().map(|container| container.id.as_str()).collect()
}

#[test]
fn recorded_exit_replaces_a_forgotten_container() {
    let ended = instance("c1", "main", 10, ContainerState::Exited);
    let exits: Exits = [read_exit(&ended)].into();
    let merged = with_exits(&RuntimePod::default(), &exits).into_owned();
    assert_eq!(merged.containers, [ended], "as it was seen, but for its files");
}

#[test]
fn observed_state_counts_and_newer_containers_come_first() {
    let exits: Exits = [read_exit(&instance("c1", "main", 10, ContainerState::Exited))].into();
    let newer = instance("c2", "main", 20, ContainerState::Running);
    let older = instance("c0", "main", 5, ContainerState::Exited);
    let merged = with_exits(&pod(vec![newer.clone(), older]), &exits).into_owned();
    assert_eq!(ids(&merged), ["c2", "c1", "c0"]);
    assert_eq!(merged.newest("main"), Some(&newer));
    // A running container runs, regardless of recorded exits.
    let runs = pod(vec![instance("c1", "main", 10, ContainerState::Running)]);
    assert_eq!(*with_exits(&runs, &exits), runs);
}

#[test]
fn unknown_state_does_not_replace_a_recorded_exit() {
    let exits: Exits = [read_exit(&instance("c1", "main", 10, ContainerState::Exited))].into();
    let merged = with_exits(&pod(vec![instance("c1", "main", 10, ContainerState::Unknown)]), &exits).into_owned();
    assert_eq!(
        (merged.containers.len(), merged.containers[0].state),
        (1, ContainerState::Exited)
    );
}

#[test]
fn only_exits_that_a_status_may_show_are_recorded() {
    let before = pod(vec![
        instance("init", "init", 1, ContainerState::Exited),
        instance("c9", "main", 9, ContainerState::Running),
    ]);
    let stopped = pod(vec![
        instance("c9", "main", 9, ContainerState::Exited),
        instance("c8", "main", 8, ContainerState::Exited),
        instance("c7", "main", 7, ContainerState::Exited),
        instance("never", "other", 6, ContainerState::Created),
    ]);
    let kept: Vec<_> = exited(&before, &stopped)
        .map(|container| container.id.as_str())
        .collect();
    assert_eq!(kept, ["c9", "c8", "init"]);
}

#[test]
fn recorded_exit_without_termination_message_has_no_message() {
    let (id, exit) = read_exit(&instance("c1", "main", 10, ContainerState::Exited));
    assert_eq!(
        exit.termination_message.as_deref(),
        Some(""),
        "there was nothing to read"
    );
    let with_message = ContainerExit {
        termination_message: Some("bye".to_owned()),
        ..exit.clone()
    };
    let unread = ContainerExit {
        termination_message: None,
        ..exit.clone()
    };
    let messages = messages(&[(id, exit), ("c2".to_owned(), with_message), ("c3".to_owned(), unread)].into());
    assert_eq!(
        ["c1", "c2", "c3"].map(|id| messages.get(id).map(String::as_str)),
        [None, Some("bye"), None]
    );
}

proptest! {
    #[test]
    fn recorded_exits_replace_any_forgotten_containers(
        containers in prop::collection::vec((0..3_u8, 0..50_i64, any::<bool>()), 0..8),
        forgotten in any::<u8>(),
    ) {
        let mut all = pod(
            containers
                .iter()
                .enumerate()
                .map(|(number, &(name, created, ended))| {
                    let state = if ended { ContainerState::Exited } else { ContainerState::Created };
                    // All have different creation times.
                    instance(&format!("c{number}"), &format!("n{name}"), created * 8 + i64::try_from(number).unwrap(), state)
                })
                .collect(),
        );
        all.containers.sort_by_key(|container| Reverse(container.created_at));
        let exits: Exits = exited(&RuntimePod::default(), &all).map(read_exit).collect();
        let mut seen = all.clone();
        let mut number = 0;
        seen.containers.retain(|container| {
            number += 1;
            !(exits.contains_key(&container.id) && forgotten & (1 << (number - 1)) != 0)
        });
        prop_assert_eq!(with_exits(&seen, &exits).into_owned(), all.clone());
        prop_assert_eq!(with_exits(&all, &exits).into_owned(), all);
    }
}
