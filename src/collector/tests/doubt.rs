//! What the graph knows after relists, answers and removed kinds.

use super::{
    cases::{APPLE, BIRCH, adopt, apple, family, names, settled},
    collector::Collector,
    world::{UNSERVED, World, to, uid},
};
use crate::collector::{
    decide::{
        Policy::{Background, Foreground},
        Step, decide,
    },
    graph::{Answer, Coordinates, Graph, Hint, NodeId, Observed, Reference},
    kinds::KindId,
};

/// A graph, and its kind Apple.
pub fn orchard() -> (Graph, KindId) {
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
        version: version.to_string(),
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
fn a_list_that_shows_an_older_state_still_shows_that_it_is_there() {
    let (mut graph, apples) = orchard();
    graph.observe(apples, &fruit(1, 9, &[7]));
    graph.begin_list(apples);
    graph.observe(apples, &fruit(1, 5, &[]));
    graph.end_list(apples, 8);
    let one = node(&graph, 1);
    assert!(graph.node(one).state.is_there());
    assert_eq!(graph.owners(one).count(), 1, "of two states the younger one counts");
}

#[test]
fn what_was_missing_is_there_again_when_an_older_state_of_it_is_shown() {
    let (mut graph, apples) = orchard();
    graph.observe(apples, &fruit(1, 9, &[]));
    graph.observe(apples, &fruit(2, 9, &[1]));
    graph.observe(apples, &fruit(1, 9, &[7]));
    graph.begin_list(apples);
    graph.observe(apples, &fruit(2, 9, &[1]));
    graph.end_list(apples, 100);
    let one = node(&graph, 1);
    assert!(graph.is_in_question(one));
    graph.observe(apples, &fruit(1, 5, &[7]));
    assert!(!graph.is_in_question(one));
}

#[test]
fn what_vanished_after_a_list_that_was_given_up_is_missing_in_the_next() {
    let shown = [fruit(1, 1, &[]), fruit(2, 2, &[1]), fruit(3, 3, &[])];
    for before in 0..3 {
        let (mut graph, apples) = orchard();
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
fn what_a_list_that_was_given_up_did_not_show_is_not_seen_in_the_next() {
    let (mut graph, apples) = orchard();
    graph.observe(apples, &fruit(1, 1, &[]));
    graph.observe(apples, &fruit(2, 2, &[3]));
    graph.begin_list(apples);
    graph.begin_list(apples);
    graph.end_list(apples, 100);
    assert_eq!(graph.len(), (0, 0));
}

#[test]
fn what_is_missing_in_one_list_is_so_in_the_next() {
    let (mut graph, apples) = orchard();
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.observe(apples, &fruit(1, 3, &[]));
    for _ in 0..2 {
        graph.hints();
        graph.begin_list(apples);
        graph.observe(apples, &fruit(2, 2, &[1]));
        graph.end_list(apples, 100);
        assert_eq!(graph.hints(), [Hint::Ask(node(&graph, 1))]);
    }
}

#[test]
fn who_gets_a_dependent_in_the_middle_of_a_list_was_seen_in_it_or_not() {
    for is_shown in [true, false] {
        let (mut graph, apples) = orchard();
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
        assert_eq!(graph.is_in_question(node(&graph, 1)), !is_shown);
    }
}

#[test]
fn who_loses_its_dependent_in_the_middle_of_a_list_was_seen_in_it_or_not() {
    for is_shown in [true, false] {
        let (mut graph, apples) = orchard();
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
fn an_answer_older_than_what_the_monitor_told_raises_no_ghost() {
    let (mut graph, apples) = orchard();
    graph.observe(apples, &fruit(2, 2, &[1]));
    let one = node(&graph, 1);
    graph.hints();
    assert_eq!(graph.answered(one, &fruit(1, 5, &[]), 5), Answer::AskAgain);
    assert!(graph.is_in_question(one));
    assert_eq!(graph.hints(), []);
    assert_eq!(graph.answered(one, &fruit(1, 6, &[]), 5), Answer::Taken);
    assert!(!graph.is_in_question(one));
    assert_eq!(graph.hints(), [Hint::Dependents(one)]);
    // A known object may be older than the kind's last resourceVersion.
    assert_eq!(graph.answered(one, &fruit(1, 7, &[3]), 9), Answer::Taken);
    assert_eq!(graph.owners(one).count(), 1);
}

#[test]
fn an_answer_does_not_outdo_a_complete_list() {
    let (mut graph, apples) = orchard();
    graph.observe(apples, &fruit(1, 1, &[3]));
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.begin_list(apples);
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.end_list(apples, 100);
    let one = node(&graph, 1);
    assert_eq!(graph.answered(one, &fruit(1, 1, &[3]), 4), Answer::AskAgain);
    assert!(graph.is_in_question(one));
    graph.absent(one);
    assert_eq!(graph.answered(one, &fruit(1, 1, &[3]), 4), Answer::AskAgain);
    assert!(!graph.node(one).state.is_there());
}

#[test]
fn what_only_an_answer_shows_has_to_be_shown_by_the_list_that_is_under_way() {
    for is_known in [true, false] {
        let (mut graph, apples) = orchard();
        graph.observe(apples, &fruit(2, 2, &[1]));
        if is_known {
            graph.observe(apples, &fruit(1, 1, &[]));
        }
        graph.begin_list(apples);
        graph.observe(apples, &fruit(2, 2, &[1]));
        let one = node(&graph, 1);
        assert_eq!(graph.answered(one, &fruit(1, 3, &[]), 0), Answer::Taken);
        graph.end_list(apples, 100);
        assert!(graph.is_in_question(one));
    }
}

#[test]
fn a_list_that_is_older_than_an_answer_proves_no_end_to_those_who_name_it_as_another_kind() {
    let (mut graph, apples) = orchard();
    let birches = graph.kinds.id("", BIRCH).unwrap();
    graph.observe(birches, &fruit(2, 2, &[1]));
    graph.begin_list(apples);
    let one = node(&graph, 1);
    assert_eq!(graph.answered(one, &fruit(1, 5, &[]), 0), Answer::Taken);
    let mut renamed = fruit(2, 6, &[1]);
    renamed.owners[0].kind = UNSERVED.into();
    graph.observe(birches, &renamed);
    graph.end_list(apples, 100);
    assert!(matches!(decide(&graph, node(&graph, 2)), Step::Unserved(_)));
}

#[test]
fn what_was_proven_is_asked_for_again_where_the_store_may_have_been_put_back() {
    let (mut graph, apples) = orchard();
    graph.observe(apples, &fruit(1, 1, &[]));
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.vanished(apples, &uid(1));
    graph.hints();
    graph.doubt();
    let one = node(&graph, 1);
    assert_eq!(graph.hints(), [Hint::Ask(one)]);
    assert_eq!(decide(&graph, node(&graph, 2)), Step::Ask(vec![one]));
}

#[test]
fn nobody_is_asked_for_what_is_named_by_no_name() {
    for name in ["evil:http/proxy/x", "a%2fb", ".", "..", ""] {
        let (mut graph, apples) = orchard();
        let mut child = fruit(2, 2, &[1]);
        child.owners[0].name = name.into();
        graph.observe(apples, &child);
        assert!(matches!(decide(&graph, node(&graph, 2)), Step::Unserved(_)), "{name:?}");
    }
}

#[test]
fn the_end_of_one_kind_is_not_that_of_another_kind_shown_with_the_same_uid() {
    let (mut graph, apples) = orchard();
    let birches = graph.kinds.id("", BIRCH).unwrap();
    graph.observe(apples, &fruit(1, 1, &[]));
    graph.observe(apples, &fruit(2, 2, &[1]));
    graph.observe(birches, &fruit(1, 1, &[]));
    graph.vanished(birches, &uid(1));
    assert_eq!(decide(&graph, node(&graph, 2)), Step::Nothing);
    graph.vanished(apples, &uid(1));
    assert!(matches!(decide(&graph, node(&graph, 2)), Step::Delete { .. }));
}

#[test]
fn what_only_an_answer_shows_has_to_be_shown_by_the_next_list() {
    for lists in 0..2 {
        let (mut graph, apples) = orchard();
        for _ in 0..lists {
            graph.begin_list(apples);
            graph.end_list(apples, 100);
        }
        graph.observe(apples, &fruit(2, 2, &[1]));
        let one = node(&graph, 1);
        graph.answered(one, &fruit(1, 3, &[]), 0);
        graph.begin_list(apples);
        graph.observe(apples, &fruit(2, 2, &[1]));
        graph.end_list(apples, 100);
        assert!(graph.is_in_question(one));
    }
}

#[test]
fn a_place_that_was_given_to_another_is_told_apart() {
    let (mut graph, apples) = orchard();
    graph.observe(apples, &fruit(2, 2, &[1]));
    let one = node(&graph, 1);
    let (was, kind, namespace) = (graph.node(one).uid, graph.node(one).kind, graph.node(one).namespace);
    let name = "a1";
    let at = Coordinates { kind, namespace, name };
    assert!(graph.lives(one) && graph.is_it(one, was, at));
    graph.observe(apples, &fruit(2, 3, &[4]));
    assert!(!graph.lives(one) && !graph.is_it(one, was, at));
    // The same coordinates with another UID.
    let mut successor = fruit(6, 4, &[3]);
    successor.name = "a1".into();
    graph.observe(apples, &successor);
    assert_eq!(node(&graph, 6), one);
    assert!(graph.lives(one) && !graph.is_it(one, was, at));
    graph.vanished(apples, &uid(6));
    // The same UID at other coordinates.
    let mut elsewhere = fruit(1, 4, &[3]);
    elsewhere.name = "elsewhere".into();
    graph.observe(apples, &elsewhere);
    assert_eq!(node(&graph, 1), one);
    assert!(graph.lives(one) && !graph.is_it(one, was, at));
}

#[test]
fn a_reference_to_where_it_is_not_is_told_from_one_to_what_is_not_there() {
    for owners in [&[][..], &[9]] {
        let (mut graph, apples) = orchard();
        let mut dependent = fruit(2, 2, &[1]);
        dependent.namespace = "n2".into();
        graph.observe(apples, &dependent);
        let named = node(&graph, 1);
        assert!(!graph.is_elsewhere(named));
        graph.observe(apples, &fruit(1, 3, owners));
        assert!(graph.is_elsewhere(named));
        graph.absent(named);
        assert!(graph.is_elsewhere(named));
        graph.vanished(apples, &uid(1));
        assert!(!graph.is_elsewhere(named));
    }
    for owners in [&[][..], &[9]] {
        let (mut graph, _) = orchard();
        let birches = graph.kinds.id("", BIRCH).unwrap();
        graph.observe(birches, &fruit(2, 2, &[1]));
        graph.observe(birches, &fruit(1, 3, owners));
        let named = graph.owners(node(&graph, 2)).next().unwrap().node;
        assert!(!graph.is_elsewhere(named), "another kind");
    }
}

#[test]
fn whoever_has_no_namespace_is_decided_on_if_its_owner_should_have_one_so_that_it_is_told() {
    let (mut graph, apples) = orchard();
    let birches = graph.kinds.id("", BIRCH).unwrap();
    graph.observe(apples, &fruit(1, 2, &[]));
    for number in [2, 3] {
        let mut birch = fruit(number, 3, &[1]);
        birch.namespace = String::new();
        graph.observe(birches, &birch);
        let birch = node(&graph, number);
        assert!(graph.hints().contains(&Hint::Decide(birch)));
        assert!(matches!(decide(&graph, birch), Step::Impossible(_)));
    }
}

/// etcd's documentation recommends to raise the revision when a backup is restored.
#[test]
fn a_state_that_a_later_list_does_not_know_is_forgotten_and_one_that_is_later_than_the_list_is_not() {
    for (version, known) in [(1_000, 11), (14, 15)] {
        let (mut graph, apples) = orchard();
        graph.observe(apples, &fruit(1, 5, &[]));
        graph.observe(apples, &fruit(2, 15, &[1, 3]));
        graph.begin_list(apples);
        graph.observe(apples, &fruit(1, 5, &[]));
        graph.observe(apples, &fruit(2, 11, &[1]));
        graph.end_list(apples, version);
        let two = node(&graph, 2);
        assert_eq!(graph.node(two).version, known, "listed at {version}");
        assert_eq!(graph.owners(two).count(), if known == 11 { 1 } else { 2 });
    }
}

#[test]
fn what_went_while_it_was_listed_is_not_brought_back_by_the_state_that_was_listed() {
    let (mut graph, apples) = orchard();
    graph.observe(apples, &fruit(2, 15, &[1]));
    graph.begin_list(apples);
    graph.observe(apples, &fruit(2, 11, &[1]));
    graph.vanished(apples, &fruit(2, 15, &[]).uid);
    graph.end_list(apples, 1_000);
    assert!(graph.with_uid(&fruit(2, 15, &[]).uid).is_empty());
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
fn nothing_is_deleted_because_its_owners_kind_is_no_longer_served() {
    for is_kept in [true, false] {
        let mut world = owned();
        let mut collector = settled(&mut world);
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
fn what_is_no_longer_served_costs_nothing_unless_somebody_depends_on_it() {
    let mut world = owned();
    world.create(BIRCH, "n1", "lone", Vec::new(), false);
    let owner = to(&world, APPLE, "n1", "a", true);
    world.create(BIRCH, "n1", "owned", vec![owner], false);
    let mut collector = settled(&mut world);
    assert_eq!(collector.graph.len(), (3, 1));
    world.withdraw(BIRCH);
    collector.settle(&mut world);
    assert_eq!(collector.graph.len(), (2, 0));
}

#[test]
fn what_is_no_longer_served_does_not_block() {
    let mut world = family(&[("a", &[])]);
    let owner = to(&world, APPLE, "n1", "a", true);
    world.create(BIRCH, "n1", "b", vec![owner], true);
    let mut collector = settled(&mut world);
    world.delete(&apple("a"), Foreground);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["a", "b"], "the birch is held");
    world.withdraw(BIRCH);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["b"]);
}

#[test]
fn what_was_left_alone_because_of_a_kind_is_decided_on_when_that_is_served() {
    let mut world = owned();
    world.create(APPLE, "n1", "other", Vec::new(), false);
    let mut collector = settled(&mut world);
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
