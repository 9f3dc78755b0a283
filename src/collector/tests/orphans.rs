//! Owners that orphan their dependents.

use super::{
    cases::{APPLE, BIRCH, adopt, apple, family, names, settled},
    doubt::{fruit, node, orchard},
    world::{UNSERVED, never, to, uid},
};
use crate::collector::{
    decide::{
        Policy::{Background, Foreground, Orphan},
        Step, decide,
    },
    graph::{Graph, Hint, Observed},
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
    graph.vanished(apples, &uid(number));
}

fn is_released(graph: &Graph, number: u64, from: u64) -> bool {
    matches!(&decide(graph, node(graph, number))
        , Step::Release(owners) if *owners == graph.with_uid(&uid(from)))
}

#[test]
fn an_owner_that_orphans_waits_for_its_dependents_to_be_released() {
    let (mut graph, apples) = orchard();
    graph.observe(apples, &fruit(1, 1, &[]));
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.hints();
    graph.observe(apples, &orphaning(1, 3));
    let one = node(&graph, 1);
    assert_eq!(graph.hints(), [Hint::Dependents(one), Hint::Decide(one)]);
    assert_eq!(decide(&graph, one), Step::Wait);
    assert!(is_released(&graph, 2, 1));
    graph.observe(apples, &fruit(3, 4, &[1]));
    assert_eq!(graph.hints(), [Hint::Decide(node(&graph, 3))]);
    graph.observe(apples, &fruit(3, 5, &[]));
    assert_eq!(graph.hints(), []);
    graph.observe(apples, &fruit(2, 6, &[]));
    assert_eq!(graph.hints(), [Hint::Decide(one)]);
    assert_eq!(decide(&graph, one), Step::FinishOrphan);
}

#[test]
fn a_dependent_that_was_released_and_names_its_owner_again_is_released_again() {
    let (mut graph, apples) = orchard();
    graph.observe(apples, &orphaning(1, 1));
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.hints();
    // In between it named no owner, which a list does not show.
    graph.observe(apples, &fruit(2, 4, &[1]));
    assert_eq!(graph.hints(), [Hint::Decide(node(&graph, 2))]);
}

#[test]
fn orphans_are_released_whatever_their_other_owners_are() {
    let mut world = family(&[("a", &[]), ("b", &["a"])]);
    let mut unserved = to(&world, APPLE, "n1", "a", true);
    unserved.kind = UNSERVED.into();
    let owners = vec![to(&world, APPLE, "n1", "a", true), unserved];
    adopt(&mut world, &apple("b"), owners);
    let mut collector = settled(&mut world);
    world.delete(&apple("a"), Orphan);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["b"]);
}

#[test]
fn two_that_own_each_other_and_are_both_orphaned_both_go() {
    let mut world = family(&[("a", &["b"]), ("b", &["a"])]);
    let mut collector = settled(&mut world);
    world.delete(&apple("a"), Orphan);
    world.delete(&apple("b"), Orphan);
    collector.settle(&mut world);
    assert_eq!(names(&world), [""; 0]);
}

#[test]
fn an_orphan_that_is_being_deleted_itself_does_not_hold_its_owner() {
    let mut world = family(&[("a", &[]), ("b", &["a"])]);
    world.edit(&apple("b"), |object| object.held = true);
    let mut collector = settled(&mut world);
    world.delete(&apple("b"), Background);
    world.delete(&apple("a"), Orphan);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["b"]);
}

#[test]
fn whoever_owns_itself_does_not_wait_to_be_released() {
    let (mut graph, apples) = orchard();
    let mut own = orphaning(1, 1);
    own.owners = fruit(1, 1, &[1]).owners;
    graph.observe(apples, &own);
    assert_eq!(decide(&graph, node(&graph, 1)), Step::FinishOrphan);
}

#[test]
fn a_dependent_told_after_the_end_of_the_owner_that_orphaned_it_stays() {
    let mut world = family(&[("a", &[])]);
    let mut collector = settled(&mut world);
    let owner = to(&world, APPLE, "n1", "a", true);
    world.create(BIRCH, "n1", "late", vec![owner], false);
    world.delete(&apple("a"), Orphan);
    // No event of birches is delivered meanwhile.
    while collector.event(&mut world, 0) || collector.follow(&mut world, 0) {}
    assert_eq!(names(&world), ["late"]);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["late"]);
    assert!(world.objects.values().all(|object| object.seen.owners.is_empty()));
    assert_eq!(collector.asked, 0);
}

#[test]
fn an_orphan_is_decided_on_anew_for_the_owners_it_has_left() {
    let mut world = family(&[("a", &[]), ("b", &["a"])]);
    let owners = vec![to(&world, APPLE, "n1", "a", true), never(APPLE)];
    adopt(&mut world, &apple("b"), owners);
    world.delete(&apple("a"), Orphan);
    let mut collector = settled(&mut world);
    collector.settle(&mut world);
    assert_eq!(names(&world), [""; 0]);
}

#[test]
fn an_owner_that_went_otherwise_in_the_end_did_not_orphan() {
    let (mut graph, apples) = orchard();
    let mut foreground = orphaning(1, 2);
    (foreground.orphan, foreground.foreground) = (false, true);
    graph.observe(apples, &orphaning(1, 1));
    graph.observe(apples, &foreground);
    graph.vanished(apples, &uid(1));
    graph.observe(apples, &fruit(2, 3, &[1]));
    graph.absent(node(&graph, 1));
    assert!(matches!(decide(&graph, node(&graph, 2)), Step::Delete { .. }));
}

#[test]
fn however_its_end_is_found_an_owner_that_orphaned_is_remembered() {
    let ends: [fn(&mut Graph, KindId); 4] = [
        |graph, apples| graph.vanished(apples, &uid(1)),
        |graph, _| graph.absent(node(graph, 1)),
        |graph, apples| {
            graph.begin_list(apples);
            graph.end_list(apples, 100);
        },
        |graph, apples| graph.unserved(apples),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let (mut graph, apples) = orchard();
        graph.observe(apples, &orphaning(1, 1));
        end(&mut graph, apples);
        assert_eq!(graph.len(), (0, 0));
        let birches = graph.kinds.id("", BIRCH).unwrap();
        graph.hints();
        graph.observe(birches, &fruit(2, 3, &[1]));
        let late = node(&graph, 2);
        assert_eq!(graph.hints(), [Hint::Decide(late)], "{number}");
        assert!(is_released(&graph, 2, 1), "{number}");
    }
}

#[test]
fn who_is_missing_and_loses_its_last_dependent_is_remembered_too() {
    let (mut graph, apples) = orchard();
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
fn a_dependent_told_before_the_kind_of_the_owner_that_orphaned_it_was_withdrawn_is_released_too() {
    let (mut graph, apples) = orchard();
    let birches = graph.kinds.id("", BIRCH).unwrap();
    graph.observe(apples, &orphaning(1, 1));
    graph.observe(birches, &fruit(2, 2, &[1]));
    graph.hints();
    graph.unserved(apples);
    assert_eq!(graph.hints(), [Hint::Dependents(node(&graph, 1))]);
    assert!(is_released(&graph, 2, 1));
}

#[test]
fn who_names_an_owner_where_it_was_not_is_released_as_well_when_it_orphaned() {
    let (mut graph, apples) = orchard();
    let mut astray = fruit(2, 2, &[1]);
    astray.namespace = "n2".into();
    graph.observe(apples, &astray);
    let named = node(&graph, 1);
    graph.observe(apples, &orphaning(1, 1));
    graph.hints();
    graph.vanished(apples, &uid(1));
    assert!(graph.hints().contains(&Hint::Dependents(named)));
    assert!(is_released(&graph, 2, 1));
}

#[test]
fn of_thousands_that_orphaned_the_last_are_remembered_and_all_that_are_still_named() {
    let (mut graph, apples) = orchard();
    graph.observe(apples, &fruit(90_001, 90_001, &[1]));
    for number in 1..=65_538 {
        end(&mut graph, apples, number);
    }
    assert!(is_released(&graph, 90_001, 1), "still named");
    graph.observe(apples, &fruit(90_002, 90_002, &[2]));
    graph.absent(node(&graph, 2));
    assert!(matches!(decide(&graph, node(&graph, 90_002)), Step::Delete { .. }));
    graph.observe(apples, &fruit(90_003, 90_003, &[3]));
    assert!(is_released(&graph, 90_003, 3));
}

#[test]
fn an_older_state_of_an_owner_that_orphaned_does_not_make_it_forgotten() {
    let (mut graph, apples) = orchard();
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.observe(apples, &fruit(1, 1, &[]));
    graph.begin_list(apples);
    let one = node(&graph, 1);
    graph.answered(one, &orphaning(1, 5), 0);
    graph.absent(one);
    assert!(is_released(&graph, 2, 1));
    // The list in progress is older, and is aborted.
    graph.observe(apples, &fruit(1, 1, &[]));
    graph.vanished(apples, &uid(1));
    assert!(is_released(&graph, 2, 1));
}

#[test]
fn an_owner_that_is_there_after_all_and_does_not_orphan_is_no_longer_remembered() {
    let (mut graph, apples) = orchard();
    graph.observe(apples, &orphaning(1, 1));
    graph.unserved(apples);
    let mut foreground = orphaning(1, 2);
    (foreground.orphan, foreground.foreground) = (false, true);
    graph.observe(apples, &foreground);
    graph.vanished(apples, &uid(1));
    let birches = graph.kinds.id("", BIRCH).unwrap();
    graph.observe(birches, &fruit(2, 3, &[1]));
    assert!(!is_released(&graph, 2, 1));
}

#[test]
fn what_is_deleted_for_its_owner_goes_as_its_finalizers_ask_for() {
    for policy in [Orphan, Foreground, Background] {
        let mut world = family(&[("a", &[]), ("b", &["a"]), ("c", &["b"])]);
        world.edit(&apple("b"), |object| {
            object.seen.orphan = policy == Orphan;
            object.seen.foreground = policy == Foreground;
        });
        let mut collector = settled(&mut world);
        world.delete(&apple("a"), Background);
        collector.settle(&mut world);
        assert_eq!(collector.deleted[0], ("b".to_owned(), policy));
        assert_eq!(names(&world), if policy == Orphan { vec!["c"] } else { vec![] });
    }
}

#[test]
fn where_there_is_no_circle_the_last_in_a_chain_holds_the_first() {
    let mut world = family(&[("a", &[]), ("b", &["a"]), ("c", &["b"])]);
    world.edit(&apple("c"), |object| object.held = true);
    let mut collector = settled(&mut world);
    world.delete(&apple("a"), Foreground);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["a", "b", "c"]);
    world.edit(&apple("c"), |object| object.held = false);
    collector.settle(&mut world);
    assert_eq!(names(&world), [""; 0]);
}
