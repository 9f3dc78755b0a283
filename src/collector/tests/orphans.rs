//! Owners that orphan their dependents.

use super::{
    cases::{APPLE, BIRCH, adopt, apple, family, names, settled_collector},
    collector::Collector,
    unknown::{apples_graph, fruit, node},
    world::{UNSERVED, World, absent_owner, to, uid},
};
use crate::collector::{
    decide::{
        Finalizer,
        Policy::{Background, Foreground, Orphan},
        Step, decide,
    },
    graph::{Graph, Observed, WorkItem},
    kinds::KindId,
};

/// An owner in orphan deletion.
fn orphaning(number: u64, version: u64) -> Observed {
    Observed {
        deleting: true,
        orphan: true,
        ..fruit(number, version, &[])
    }
}

/// Applies an owner's orphan deletion and its end.
fn end(graph: &mut Graph, apples: KindId, number: u64) {
    graph.observe(apples, &orphaning(number, number));
    graph.apply_deletion(apples, &uid(number));
}

fn is_released(graph: &Graph, number: u64, from: u64) -> bool {
    matches!(&decide(graph, node(graph, number))
        , Step::DropReferences(owners) if *owners == graph.with_uid(&uid(from)))
}

#[test]
fn an_orphaning_owner_waits_until_dependents_drop_their_references() {
    let (mut graph, apples) = apples_graph();
    graph.observe(apples, &fruit(1, 1, &[]));
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.take_items();
    graph.observe(apples, &orphaning(1, 3));
    let one = node(&graph, 1);
    assert_eq!(graph.take_items(), [WorkItem::Dependents(one), WorkItem::Decide(one)]);
    assert_eq!(decide(&graph, one), Step::Wait);
    assert!(is_released(&graph, 2, 1));
    graph.observe(apples, &fruit(3, 4, &[1]));
    assert_eq!(graph.take_items(), [WorkItem::Decide(node(&graph, 3))]);
    graph.observe(apples, &fruit(3, 5, &[]));
    assert_eq!(graph.take_items(), []);
    graph.observe(apples, &fruit(2, 6, &[]));
    assert_eq!(graph.take_items(), [WorkItem::Decide(one)]);
    assert_eq!(decide(&graph, one), Step::RemoveFinalizer(Finalizer::Orphan));
}

#[test]
fn a_reference_that_is_set_again_is_dropped_again() {
    let (mut graph, apples) = apples_graph();
    graph.observe(apples, &orphaning(1, 1));
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.take_items();
    // In between it named no owner, which a list does not show.
    graph.observe(apples, &fruit(2, 4, &[1]));
    assert_eq!(graph.take_items(), [WorkItem::Decide(node(&graph, 2))]);
}

#[test]
fn orphans_drop_the_reference_whatever_their_other_owners_are() {
    let mut world = family(&[("a", &[]), ("b", &["a"])]);
    let mut unserved = to(&world, APPLE, "n1", "a", true);
    unserved.kind = UNSERVED.into();
    let owners = vec![to(&world, APPLE, "n1", "a", true), unserved];
    adopt(&mut world, &apple("b"), owners);
    let mut collector = settled_collector(&mut world);
    world.delete(&apple("a"), Orphan);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["b"]);
}

#[test]
fn two_orphaning_objects_that_own_each_other_are_both_deleted() {
    let mut world = family(&[("a", &["b"]), ("b", &["a"])]);
    let mut collector = settled_collector(&mut world);
    world.delete(&apple("a"), Orphan);
    world.delete(&apple("b"), Orphan);
    collector.settle(&mut world);
    assert_eq!(names(&world), [""; 0]);
}

#[test]
fn an_orphan_in_deletion_does_not_block_its_owner() {
    let mut world = family(&[("a", &[]), ("b", &["a"])]);
    world.edit(&apple("b"), |object| object.has_other_finalizer = true);
    let mut collector = settled_collector(&mut world);
    world.delete(&apple("b"), Background);
    world.delete(&apple("a"), Orphan);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["b"]);
}

#[test]
fn an_orphaning_object_that_owns_itself_does_not_wait() {
    let (mut graph, apples) = apples_graph();
    let mut own = orphaning(1, 1);
    own.owners = fruit(1, 1, &[1]).owners;
    graph.observe(apples, &own);
    assert_eq!(
        decide(&graph, node(&graph, 1)),
        Step::RemoveFinalizer(Finalizer::Orphan)
    );
}

#[test]
fn a_dependent_reported_after_its_orphaning_owner_was_deleted_stays() {
    let mut world = family(&[("a", &[])]);
    let mut collector = settled_collector(&mut world);
    let owner = to(&world, APPLE, "n1", "a", true);
    world.create(BIRCH, "n1", "late", vec![owner], false);
    world.delete(&apple("a"), Orphan);
    // No event of birches is delivered meanwhile.
    while collector.event(&mut world, 0) || collector.process_item(&mut world, 0) {}
    assert_eq!(names(&world), ["late"]);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["late"]);
    assert!(world.objects.values().all(|object| object.seen.owners.is_empty()));
    assert_eq!(collector.asked, 0);
}

/// The watch still shows the deleted owner with a foreground deletion. Its successor has the same name and really waits for its
/// dependents. A GET by name must not confirm the old state: the UIDs differ.
#[test]
fn late_state_of_an_orphaning_owner_is_not_confirmed_by_its_successor() {
    let mut world = family(&[("a", &[])]);
    let mut collector = settled_collector(&mut world);
    let owner = to(&world, APPLE, "n1", "a", true);
    let deliver_all_but_apples = |collector: &mut Collector, world: &mut World| {
        while collector.event(world, 1) || collector.deliver_answer(0) || collector.process_item(world, 0) {}
    };
    world.create(BIRCH, "n1", "early", vec![owner.clone()], false);
    deliver_all_but_apples(&mut collector, &mut world);
    world.delete(&apple("a"), Foreground);
    world.delete(&apple("a"), Orphan);
    let id = collector.graph.with_uid(&owner.uid)[0];
    collector.get(&world, id);
    deliver_all_but_apples(&mut collector, &mut world);
    collector.get(&world, id);
    deliver_all_but_apples(&mut collector, &mut world);
    assert!(!world.objects.contains_key(&apple("a")));
    world.create(APPLE, "n1", "a", Vec::new(), false);
    world.delete(&apple("a"), Foreground);
    world.create(BIRCH, "n1", "late", vec![owner], false);
    // A stale event: the first one has a foreground deletion, which was replaced by an orphan deletion later.
    assert!(collector.event(&mut world, 0));
    assert!(collector.event(&mut world, 1));
    let late = collector.queue.len() - 1;
    collector.process_item(&mut world, late);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["early", "late"]);
}

#[test]
fn an_orphan_is_decided_on_again_by_its_other_owners() {
    let mut world = family(&[("a", &[]), ("b", &["a"])]);
    let owners = vec![to(&world, APPLE, "n1", "a", true), absent_owner(APPLE)];
    adopt(&mut world, &apple("b"), owners);
    world.delete(&apple("a"), Orphan);
    let mut collector = settled_collector(&mut world);
    collector.settle(&mut world);
    assert_eq!(names(&world), [""; 0]);
}

#[test]
fn an_owner_whose_last_state_was_not_orphaning_did_not_orphan() {
    let (mut graph, apples) = apples_graph();
    let mut foreground = orphaning(1, 2);
    (foreground.orphan, foreground.foreground) = (false, true);
    graph.observe(apples, &orphaning(1, 1));
    graph.observe(apples, &foreground);
    graph.apply_deletion(apples, &uid(1));
    graph.observe(apples, &fruit(2, 3, &[1]));
    graph.set_absent(node(&graph, 1));
    assert!(matches!(decide(&graph, node(&graph, 2)), Step::Delete(_)));
}

#[test]
fn an_orphaning_owner_is_remembered_however_its_deletion_is_found() {
    let ends: [fn(&mut Graph, KindId); 4] = [
        |graph, apples| graph.apply_deletion(apples, &uid(1)),
        |graph, _| graph.set_absent(node(graph, 1)),
        |graph, apples| {
            graph.begin_list(apples);
            graph.end_list(apples, 100);
        },
        |graph, apples| graph.apply_unserved(apples),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let (mut graph, apples) = apples_graph();
        graph.observe(apples, &orphaning(1, 1));
        end(&mut graph, apples);
        assert_eq!(graph.len(), (0, 0));
        let birches = graph.kinds.id("", BIRCH).unwrap();
        graph.take_items();
        graph.observe(birches, &fruit(2, 3, &[1]));
        let late = node(&graph, 2);
        assert_eq!(graph.take_items(), [WorkItem::Decide(late)], "{number}");
        assert!(is_released(&graph, 2, 1), "{number}");
    }
}

#[test]
fn an_unknown_orphaning_owner_without_dependents_is_remembered() {
    let (mut graph, apples) = apples_graph();
    graph.observe(apples, &orphaning(1, 1));
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.begin_list(apples);
    graph.observe(apples, &fruit(2, 3, &[1]));
    graph.end_list(apples, 100);
    graph.observe(apples, &fruit(2, 4, &[]));
    assert_eq!(graph.len(), (0, 1));
    graph.observe(apples, &fruit(3, 5, &[1]));
    assert!(is_released(&graph, 3, 1));
}

#[test]
fn dependents_of_an_orphaning_owner_drop_the_reference_when_its_kind_is_removed() {
    let (mut graph, apples) = apples_graph();
    let birches = graph.kinds.id("", BIRCH).unwrap();
    graph.observe(apples, &orphaning(1, 1));
    graph.observe(birches, &fruit(2, 2, &[1]));
    graph.take_items();
    graph.apply_unserved(apples);
    assert_eq!(graph.take_items(), [WorkItem::Dependents(node(&graph, 1))]);
    assert!(is_released(&graph, 2, 1));
}

#[test]
fn a_reference_with_a_wrong_namespace_to_an_orphaning_owner_is_dropped() {
    let (mut graph, apples) = apples_graph();
    let mut astray = fruit(2, 2, &[1]);
    astray.namespace = "n2".into();
    graph.observe(apples, &astray);
    let named = node(&graph, 1);
    graph.observe(apples, &orphaning(1, 1));
    graph.take_items();
    graph.apply_deletion(apples, &uid(1));
    assert!(graph.take_items().contains(&WorkItem::Dependents(named)));
    assert!(is_released(&graph, 2, 1));
}

#[test]
fn the_last_orphaning_owners_and_all_named_ones_are_remembered() {
    let (mut graph, apples) = apples_graph();
    graph.observe(apples, &fruit(90_001, 90_001, &[1]));
    for number in 1..=65_538 {
        end(&mut graph, apples, number);
    }
    assert!(is_released(&graph, 90_001, 1), "still named");
    graph.observe(apples, &fruit(90_002, 90_002, &[2]));
    graph.set_absent(node(&graph, 2));
    assert!(matches!(decide(&graph, node(&graph, 90_002)), Step::Delete(_)));
    graph.observe(apples, &fruit(90_003, 90_003, &[3]));
    assert!(is_released(&graph, 90_003, 3));
}

#[test]
fn an_older_state_of_an_orphaning_owner_does_not_remove_it() {
    let (mut graph, apples) = apples_graph();
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.observe(apples, &fruit(1, 1, &[]));
    graph.begin_list(apples);
    let one = node(&graph, 1);
    graph.apply_get(one, &orphaning(1, 5), 0);
    graph.set_absent(one);
    assert!(is_released(&graph, 2, 1));
    // The list in progress is older, and is aborted.
    graph.observe(apples, &fruit(1, 1, &[]));
    graph.apply_deletion(apples, &uid(1));
    assert!(is_released(&graph, 2, 1));
}

#[test]
fn an_owner_seen_without_the_orphan_finalizer_is_no_longer_remembered() {
    let (mut graph, apples) = apples_graph();
    graph.observe(apples, &orphaning(1, 1));
    graph.apply_unserved(apples);
    let mut foreground = orphaning(1, 2);
    (foreground.orphan, foreground.foreground) = (false, true);
    graph.observe(apples, &foreground);
    graph.apply_deletion(apples, &uid(1));
    let birches = graph.kinds.id("", BIRCH).unwrap();
    graph.observe(birches, &fruit(2, 3, &[1]));
    assert!(!is_released(&graph, 2, 1));
}

#[test]
fn a_dependent_is_deleted_with_the_policy_of_its_finalizers() {
    for policy in [Orphan, Foreground, Background] {
        let mut world = family(&[("a", &[]), ("b", &["a"]), ("c", &["b"])]);
        world.edit(&apple("b"), |object| {
            object.seen.orphan = policy == Orphan;
            object.seen.foreground = policy == Foreground;
        });
        let mut collector = settled_collector(&mut world);
        world.delete(&apple("a"), Background);
        collector.settle(&mut world);
        assert_eq!(collector.deleted[0], ("b".to_owned(), policy));
        assert_eq!(names(&world), if policy == Orphan { vec!["c"] } else { vec![] });
    }
}

#[test]
fn in_a_chain_without_a_cycle_the_last_dependent_blocks_the_first_owner() {
    let mut world = family(&[("a", &[]), ("b", &["a"]), ("c", &["b"])]);
    world.edit(&apple("c"), |object| object.has_other_finalizer = true);
    let mut collector = settled_collector(&mut world);
    world.delete(&apple("a"), Foreground);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["a", "b", "c"]);
    world.edit(&apple("c"), |object| object.has_other_finalizer = false);
    collector.settle(&mut world);
    assert_eq!(names(&world), [""; 0]);
}
