//! State of the graph after relists, answers and removed kinds.

use super::{
    cases::{APPLE, BIRCH, adopt, apple, family, names, settled_collector},
    collector::Collector,
    world::{UNSERVED, World, to, uid},
};
use crate::collector::{
    decide::{
        Policy::{Background, Foreground},
        Step, decide,
    },
    graph::{Coordinates, Graph, NodeId, Observed, Reference, WorkItem},
    kinds::KindId,
};

/// A graph, and its kind Apple.
pub fn apples_graph() -> (Graph, KindId) {
    let collector = Collector::new();
    (collector.graph, collector.kinds[0].id)
}

/// An apple with this version and these owners.
pub fn fruit(number: u64, version: u64, owners: &[u64]) -> Observed {
    let owner = |&number: &u64| Reference {
        api_version: "v1".into(),
        kind: APPLE.into(),
        name: format!("a{number}"),
        uid: uid(number),
        blocking: true,
    };
    Observed {
        uid: uid(number),
        namespace: "n1".into(),
        name: format!("a{number}"),
        version,
        owners: owners.iter().map(owner).collect(),
        ..Observed::default()
    }
}

pub fn node(graph: &Graph, number: u64) -> NodeId {
    let nodes = graph.with_uid(&uid(number));
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    nodes[0]
}

#[test]
fn a_list_with_an_older_state_proves_that_the_object_exists() {
    let (mut graph, apples) = apples_graph();
    graph.observe(apples, &fruit(1, 9, &[7]));
    graph.begin_list(apples);
    graph.observe(apples, &fruit(1, 5, &[]));
    graph.end_list(apples, 8);
    let one = node(&graph, 1);
    assert!(graph.node(one).state.exists());
    assert_eq!(graph.owners(one).count(), 1, "of two states the younger one counts");
}

#[test]
fn an_unknown_object_exists_once_an_older_state_is_shown() {
    let (mut graph, apples) = apples_graph();
    graph.observe(apples, &fruit(1, 9, &[]));
    graph.observe(apples, &fruit(2, 9, &[1]));
    graph.observe(apples, &fruit(1, 9, &[7]));
    graph.begin_list(apples);
    graph.observe(apples, &fruit(2, 9, &[1]));
    graph.end_list(apples, 100);
    let one = node(&graph, 1);
    assert!(graph.is_unknown(one));
    graph.observe(apples, &fruit(1, 5, &[7]));
    assert!(!graph.is_unknown(one));
}

#[test]
fn an_object_deleted_after_an_aborted_list_is_absent_in_the_next() {
    let shown = [fruit(1, 1, &[]), fruit(2, 2, &[1]), fruit(3, 3, &[])];
    for before in 0..3 {
        let (mut graph, apples) = apples_graph();
        for attempt in 0..before {
            graph.begin_list(apples);
            shown.iter().for_each(|object| graph.observe(apples, object));
            if attempt == 0 {
                graph.end_list(apples, 100);
            }
        }
        graph.begin_list(apples);
        graph.observe(apples, &shown[0]);
        graph.end_list(apples, 100);
        assert_eq!(graph.len(), (0, 1), "after {before} lists");
    }
}

#[test]
fn an_aborted_list_does_not_count_for_the_next() {
    let (mut graph, apples) = apples_graph();
    graph.observe(apples, &fruit(1, 1, &[]));
    graph.observe(apples, &fruit(2, 2, &[3]));
    graph.begin_list(apples);
    graph.begin_list(apples);
    graph.end_list(apples, 100);
    assert_eq!(graph.len(), (0, 0));
}

#[test]
fn an_object_missing_in_one_list_stays_missing_in_the_next() {
    let (mut graph, apples) = apples_graph();
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.observe(apples, &fruit(1, 3, &[]));
    for _ in 0..2 {
        graph.take_items();
        graph.begin_list(apples);
        graph.observe(apples, &fruit(2, 2, &[1]));
        graph.end_list(apples, 100);
        assert_eq!(graph.take_items(), [WorkItem::GetOwner(node(&graph, 1))]);
    }
}

#[test]
fn an_object_that_gets_a_dependent_during_a_list_keeps_its_mark() {
    for is_shown in [true, false] {
        let (mut graph, apples) = apples_graph();
        let dependent = fruit(2, 2, &[1]);
        graph.begin_list(apples);
        graph.observe(apples, &fruit(1, 1, &[]));
        graph.end_list(apples, 100);
        graph.begin_list(apples);
        if is_shown {
            graph.observe(apples, &fruit(1, 1, &[]));
        }
        graph.observe(apples, &dependent);
        graph.end_list(apples, 100);
        assert_eq!(graph.is_unknown(node(&graph, 1)), !is_shown);
    }
}

#[test]
fn an_object_that_loses_its_dependent_during_a_list_keeps_its_mark() {
    for is_shown in [true, false] {
        let (mut graph, apples) = apples_graph();
        graph.observe(apples, &fruit(2, 2, &[1]));
        graph.observe(apples, &fruit(1, 1, &[]));
        graph.begin_list(apples);
        if is_shown {
            graph.observe(apples, &fruit(1, 1, &[]));
        }
        graph.observe(apples, &fruit(2, 3, &[]));
        graph.end_list(apples, 100);
        assert_eq!(graph.len(), (0, 1 + usize::from(is_shown)));
    }
}

#[test]
fn a_get_answer_older_than_the_watch_does_not_restore_a_deleted_object() {
    let (mut graph, apples) = apples_graph();
    graph.observe(apples, &fruit(2, 2, &[1]));
    let one = node(&graph, 1);
    graph.take_items();
    assert!(!graph.apply_get(one, &fruit(1, 5, &[]), 5));
    assert!(graph.is_unknown(one));
    assert_eq!(graph.take_items(), []);
    assert!(graph.apply_get(one, &fruit(1, 6, &[]), 5));
    assert!(!graph.is_unknown(one));
    assert_eq!(graph.take_items(), [WorkItem::Dependents(one)]);
    // A known object may be older than the kind's last resourceVersion.
    assert!(graph.apply_get(one, &fruit(1, 7, &[3]), 9));
    assert_eq!(graph.owners(one).count(), 1);
}

#[test]
fn a_get_answer_does_not_override_a_complete_list() {
    let (mut graph, apples) = apples_graph();
    graph.observe(apples, &fruit(1, 1, &[3]));
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.begin_list(apples);
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.end_list(apples, 100);
    let one = node(&graph, 1);
    assert!(!graph.apply_get(one, &fruit(1, 1, &[3]), 4));
    assert!(graph.is_unknown(one));
    graph.set_absent(one);
    assert!(!graph.apply_get(one, &fruit(1, 1, &[3]), 4));
    assert!(!graph.node(one).state.exists());
}

#[test]
fn the_list_in_progress_has_to_show_an_object_known_by_get() {
    for is_known in [true, false] {
        let (mut graph, apples) = apples_graph();
        graph.observe(apples, &fruit(2, 2, &[1]));
        if is_known {
            graph.observe(apples, &fruit(1, 1, &[]));
        }
        graph.begin_list(apples);
        graph.observe(apples, &fruit(2, 2, &[1]));
        let one = node(&graph, 1);
        assert!(graph.apply_get(one, &fruit(1, 3, &[]), 0));
        graph.end_list(apples, 100);
        assert!(graph.is_unknown(one));
    }
}

#[test]
fn a_list_older_than_a_get_proves_no_deletion_for_another_kind() {
    let (mut graph, apples) = apples_graph();
    let birches = graph.kinds.id("", BIRCH).unwrap();
    graph.observe(birches, &fruit(2, 2, &[1]));
    graph.begin_list(apples);
    let one = node(&graph, 1);
    assert!(graph.apply_get(one, &fruit(1, 5, &[]), 0));
    let mut renamed = fruit(2, 6, &[1]);
    renamed.owners[0].kind = UNSERVED.into();
    graph.observe(birches, &renamed);
    graph.end_list(apples, 100);
    assert!(matches!(decide(&graph, node(&graph, 2)), Step::Unresolved(_)));
}

#[test]
fn absent_owners_are_checked_again_when_the_store_may_be_restored() {
    let (mut graph, apples) = apples_graph();
    graph.observe(apples, &fruit(1, 1, &[]));
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.apply_deletion(apples, &uid(1));
    graph.take_items();
    graph.recheck_absent();
    let one = node(&graph, 1);
    assert_eq!(graph.take_items(), [WorkItem::GetOwner(one)]);
    assert_eq!(decide(&graph, node(&graph, 2)), Step::GetOwners(vec![one]));
}

#[test]
fn an_owner_with_an_invalid_name_gets_no_request() {
    for name in ["evil:http/proxy/x", "a%2fb", ".", "..", ""] {
        let (mut graph, apples) = apples_graph();
        let mut child = fruit(2, 2, &[1]);
        child.owners[0].name = name.into();
        graph.observe(apples, &child);
        assert!(
            matches!(decide(&graph, node(&graph, 2)), Step::Unresolved(_)),
            "{name:?}"
        );
    }
}

#[test]
fn a_deletion_of_one_kind_does_not_affect_another_kind_with_the_same_uid() {
    let (mut graph, apples) = apples_graph();
    let birches = graph.kinds.id("", BIRCH).unwrap();
    graph.observe(apples, &fruit(1, 1, &[]));
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.observe(birches, &fruit(1, 1, &[]));
    graph.apply_deletion(birches, &uid(1));
    assert_eq!(decide(&graph, node(&graph, 2)), Step::Nothing);
    graph.apply_deletion(apples, &uid(1));
    assert!(matches!(decide(&graph, node(&graph, 2)), Step::Delete(_)));
}

#[test]
fn the_next_list_has_to_show_an_object_known_by_get() {
    for lists in 0..2 {
        let (mut graph, apples) = apples_graph();
        for _ in 0..lists {
            graph.begin_list(apples);
            graph.end_list(apples, 100);
        }
        graph.observe(apples, &fruit(2, 2, &[1]));
        let one = node(&graph, 1);
        graph.apply_get(one, &fruit(1, 3, &[]), 0);
        graph.begin_list(apples);
        graph.observe(apples, &fruit(2, 2, &[1]));
        graph.end_list(apples, 100);
        assert!(graph.is_unknown(one));
    }
}

#[test]
fn a_reused_node_index_is_detected() {
    let (mut graph, apples) = apples_graph();
    graph.observe(apples, &fruit(2, 2, &[1]));
    let one = node(&graph, 1);
    let (was, kind) = (graph.node(one).uid, graph.node(one).kind);
    let namespace = graph.node(one).namespace.to_string();
    let at = Coordinates {
        kind,
        namespace: &namespace,
        name: "a1",
    };
    assert!(graph.contains(one) && graph.matches(one, was, at));
    graph.observe(apples, &fruit(2, 3, &[4]));
    assert!(!graph.contains(one) && !graph.matches(one, was, at));
    // The same coordinates with another UID.
    let mut successor = fruit(6, 4, &[3]);
    successor.name = "a1".into();
    graph.observe(apples, &successor);
    assert_eq!(node(&graph, 6), one);
    assert!(graph.contains(one) && !graph.matches(one, was, at));
    graph.apply_deletion(apples, &uid(6));
    // The same UID at other coordinates.
    let mut elsewhere = fruit(1, 4, &[3]);
    elsewhere.name = "elsewhere".into();
    graph.observe(apples, &elsewhere);
    assert_eq!(node(&graph, 1), one);
    assert!(graph.contains(one) && !graph.matches(one, was, at));
}

#[test]
fn a_wrong_namespace_differs_from_an_absent_owner() {
    for owners in [&[][..], &[9]] {
        let (mut graph, apples) = apples_graph();
        let mut dependent = fruit(2, 2, &[1]);
        dependent.namespace = "n2".into();
        graph.observe(apples, &dependent);
        let named = node(&graph, 1);
        assert!(!graph.exists_elsewhere(named));
        graph.observe(apples, &fruit(1, 3, owners));
        assert!(graph.exists_elsewhere(named));
        graph.set_absent(named);
        assert!(graph.exists_elsewhere(named));
        graph.apply_deletion(apples, &uid(1));
        assert!(!graph.exists_elsewhere(named));
    }
    for owners in [&[][..], &[9]] {
        let (mut graph, _) = apples_graph();
        let birches = graph.kinds.id("", BIRCH).unwrap();
        graph.observe(birches, &fruit(2, 2, &[1]));
        graph.observe(birches, &fruit(1, 3, owners));
        let named = graph.owners(node(&graph, 2)).next().unwrap().node;
        assert!(!graph.exists_elsewhere(named), "another kind");
    }
}

#[test]
fn a_cluster_scoped_object_with_a_namespaced_owner_is_decided_on() {
    let (mut graph, apples) = apples_graph();
    let birches = graph.kinds.id("", BIRCH).unwrap();
    graph.observe(apples, &fruit(1, 2, &[]));
    for number in [2, 3] {
        let mut birch = fruit(number, 3, &[1]);
        birch.namespace = String::new();
        graph.observe(birches, &birch);
        let birch = node(&graph, number);
        assert!(graph.take_items().contains(&WorkItem::Decide(birch)));
        assert!(matches!(decide(&graph, birch), Step::NamespacedOwner(_)));
    }
}

/// etcd's documentation recommends to raise the revision when a backup is restored.
#[test]
fn a_list_that_shows_an_earlier_state_than_it_should_reveals_a_restored_store() {
    for (version, is_restored) in [(1_000, true), (14, false)] {
        let (mut graph, apples) = apples_graph();
        graph.observe(apples, &fruit(1, 5, &[]));
        graph.observe(apples, &fruit(2, 15, &[1, 3]));
        graph.begin_list(apples);
        graph.observe(apples, &fruit(1, 5, &[]));
        graph.observe(apples, &fruit(2, 11, &[1]));
        assert_eq!(graph.end_list(apples, version), is_restored, "listed at {version}");
        let two = node(&graph, 2);
        assert_eq!((graph.node(two).version, graph.owners(two).count()), (15, 2));
    }
}

/// An apple `a` whose owner is a birch.
fn owned() -> World {
    let mut world = World::default();
    world.create(BIRCH, "n1", "b", Vec::new(), false);
    let owner = to(&world, BIRCH, "n1", "b", true);
    world.create(APPLE, "n1", "a", vec![owner], false);
    world
}

#[test]
fn a_kind_that_is_no_longer_served_deletes_no_dependent() {
    for is_kept in [true, false] {
        let mut world = owned();
        let mut collector = settled_collector(&mut world);
        world.withdraw(BIRCH);
        if !is_kept {
            world.objects.retain(|key, _| key.0 != BIRCH);
        }
        collector.settle(&mut world);
        assert!(world.objects.contains_key(&apple("a")));
        assert_eq!((collector.known(), collector.asked), (1, 0));
        world.restore(BIRCH);
        collector.settle(&mut world);
        assert_eq!(world.objects.len(), if is_kept { 2 } else { 0 });
        assert_eq!(collector.known(), world.objects.len());
    }
}

#[test]
fn objects_of_a_removed_kind_keep_a_node_only_with_dependents() {
    let mut world = owned();
    world.create(BIRCH, "n1", "lone", Vec::new(), false);
    let owner = to(&world, APPLE, "n1", "a", true);
    world.create(BIRCH, "n1", "owned", vec![owner], false);
    let mut collector = settled_collector(&mut world);
    assert_eq!(collector.graph.len(), (3, 1));
    world.withdraw(BIRCH);
    collector.settle(&mut world);
    assert_eq!(collector.graph.len(), (2, 0));
}

#[test]
fn objects_of_a_removed_kind_do_not_block() {
    let mut world = family(&[("a", &[])]);
    let owner = to(&world, APPLE, "n1", "a", true);
    world.create(BIRCH, "n1", "b", vec![owner], true);
    let mut collector = settled_collector(&mut world);
    world.delete(&apple("a"), Foreground);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["a", "b"], "the birch is held");
    world.withdraw(BIRCH);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["b"]);
}

#[test]
fn objects_kept_because_of_a_kind_are_decided_on_once_it_is_served() {
    let mut world = owned();
    world.create(APPLE, "n1", "other", Vec::new(), false);
    let mut collector = settled_collector(&mut world);
    world.withdraw(BIRCH);
    collector.settle(&mut world);
    let owners = vec![
        to(&world, BIRCH, "n1", "b", true),
        to(&world, APPLE, "n1", "other", true),
    ];
    adopt(&mut world, &apple("a"), owners);
    collector.settle(&mut world);
    world.delete(&apple("other"), Background);
    collector.settle(&mut world);
    assert_eq!(world.objects[&apple("a")].seen.owners.len(), 2);
    world.restore(BIRCH);
    collector.discover(&world, 1);
    // The list is complete before any GET.
    collector.list(&mut world, 1);
    collector.settle(&mut world);
    assert_eq!(world.objects[&apple("a")].seen.owners.len(), 1);
    assert_eq!(collector.asked, 0);
}
