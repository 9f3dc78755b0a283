//! Strings in owner references: the API server accepts any content, any length and any number of them.

use super::{
    cases::APPLE,
    doubt::{fruit, node, orchard},
    world::uid,
};
use crate::collector::{
    decide::{Step, decide},
    graph::{Graph, Hint, Observed, Reference},
};

/// Invalid UTF-8 after decoding.
const DAMAGED: &str = "a\u{fffd}";

fn reference(kind: &str, name: &str, uid: &str) -> Reference {
    Reference {
        api_version: "v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: uid.into(),
        blocking: true,
    }
}

/// References to apple 1, each with one string replaced.
fn spoiled(text: &str) -> [Reference; 4] {
    let sound = || reference(APPLE, "a1", &uid(1));
    [
        Reference {
            api_version: format!("{text}/v1"),
            ..sound()
        },
        Reference {
            kind: text.into(),
            ..sound()
        },
        Reference {
            name: text.into(),
            ..sound()
        },
        Reference {
            uid: text.into(),
            ..sound()
        },
    ]
}

fn owned(number: u64, version: u64, owners: Vec<Reference>) -> Observed {
    Observed {
        owners,
        ..fruit(number, version, &[])
    }
}

/// Answers all GETs with 404.
fn deny_all(graph: &mut Graph) {
    for hint in graph.hints() {
        if let Hint::Ask(id) = hint
            && graph.lives(id)
            && graph.can_be_asked_for(id)
        {
            graph.absent(id);
        }
    }
}

fn is_kept(reference: Reference) {
    let (mut graph, apples) = orchard();
    let told = format!("{reference:.200?}");
    // A second reference, to an absent owner.
    let gone = reference_to_nothing();
    graph.observe(apples, &owned(2, 2, vec![reference, gone]));
    deny_all(&mut graph);
    let step = decide(&graph, node(&graph, 2));
    assert!(
        matches!(&step, Step::Unserved(owners) if owners.len() == 1),
        "{step:?}: {told}"
    );
}

fn reference_to_nothing() -> Reference {
    reference(APPLE, "never", &uid(9))
}

#[test]
fn nothing_is_concluded_from_a_reference_that_was_damaged() {
    spoiled(DAMAGED).into_iter().for_each(is_kept);
}

#[test]
fn nothing_is_concluded_from_a_reference_with_a_text_longer_than_any_can_be() {
    spoiled(&"x".repeat(2000)).into_iter().for_each(is_kept);
}

#[test]
fn a_damaged_reference_stays_when_a_sound_one_with_its_uid_is_taken_out() {
    let (mut graph, apples) = orchard();
    let orphaning = Observed {
        deleting: true,
        orphan: true,
        ..fruit(1, 1, &[])
    };
    graph.observe(apples, &orphaning);
    let damaged = reference(APPLE, DAMAGED, &uid(1));
    graph.observe(apples, &owned(2, 2, vec![damaged, reference(APPLE, "a1", &uid(1))]));
    let one = graph
        .with_uid(&uid(1))
        .into_iter()
        .find(|&id| graph.node(id).state.is_there());
    assert_eq!(decide(&graph, node(&graph, 2)), Step::Release(vec![one.unwrap()]));
    graph.vanished(apples, &uid(1));
    graph.observe(apples, &owned(2, 3, vec![reference(APPLE, DAMAGED, &uid(1))]));
    let step = decide(&graph, node(&graph, 2));
    assert!(matches!(step, Step::Unserved(_)), "{step:?}");
}

#[test]
fn an_object_whose_own_texts_were_damaged_is_left_alone_and_costs_nothing() {
    let sound = || owned(2, 2, vec![reference_to_nothing()]);
    let objects = [
        Observed {
            uid: DAMAGED.into(),
            ..sound()
        },
        Observed {
            uid: "x".repeat(2000),
            ..sound()
        },
        Observed {
            namespace: DAMAGED.into(),
            ..sound()
        },
        Observed {
            name: DAMAGED.into(),
            ..sound()
        },
    ];
    for object in objects {
        let (mut graph, apples) = orchard();
        graph.observe(apples, &object);
        assert_eq!((graph.len(), graph.hints().len()), ((0, 0), 0), "{object:.200?}");
        graph.vanished(apples, &object.uid);
        assert_eq!((graph.len(), graph.hints().len()), ((0, 0), 0), "{object:.200?}");
    }
}

#[test]
fn references_that_cannot_be_followed_are_one_node_however_many_there_are() {
    let (mut graph, apples) = orchard();
    for number in 1..100 {
        let kind = format!("{number}{DAMAGED}");
        let owners = vec![
            reference(&kind, &kind, &kind),
            reference(&"x".repeat(2000), &kind, &kind),
        ];
        graph.observe(apples, &owned(number, number, owners));
    }
    assert_eq!(graph.len(), (100, 0));
    for number in 1..100 {
        graph.vanished(apples, &uid(number));
    }
    assert_eq!(graph.len(), (0, 0));
}

/// An object with more references than an API object can have.
fn with_many(version: u64, uid: impl Fn(u64) -> String, name: impl Fn(u64) -> String) -> Observed {
    let owners = (0..100_000).map(|number| reference(APPLE, &name(number), &uid(number)));
    owned(1_000_000, version, owners.collect())
}

/// Quadratic cost would be minutes.
#[test]
fn as_many_references_as_an_object_can_hold_are_followed_changed_and_let_go_of() {
    let (mut graph, apples) = orchard();
    let many = |version, first| with_many(version, |number| uid(first + number), |_| "n".into());
    graph.observe(apples, &many(1, 0));
    graph.observe(apples, &many(2, 0));
    assert_eq!(graph.len(), (100_001, 0));
    graph.observe(apples, &many(3, 500));
    assert_eq!(graph.len(), (100_001, 0));
    // Each reference twice.
    let mut twice = many(4, 500);
    twice.owners.extend(many(4, 500).owners);
    graph.observe(apples, &twice);
    assert_eq!(graph.owners(node(&graph, 1_000_000)).count(), 100_000);
    graph.served(apples);
    assert_eq!(graph.len(), (100_001, 0));
    graph.vanished(apples, &uid(1_000_000));
    assert_eq!(graph.len(), (0, 0));
}

#[test]
fn one_uid_may_be_named_at_as_many_places_as_an_object_can_hold_references() {
    let (mut graph, apples) = orchard();
    let many = |version| with_many(version, |_| uid(1), |number| format!("a{number}"));
    graph.observe(apples, &fruit(1, 1, &[]));
    graph.observe(apples, &many(2));
    graph.observe(apples, &many(3));
    assert_eq!(graph.len(), (100_001, 0));
    let places = graph.with_uid(&uid(1));
    let there: Vec<_> = places.iter().filter(|&&id| graph.node(id).state.is_there()).collect();
    assert_eq!((places.len(), there.len()), (100_000, 1));
    assert_eq!(&*graph.node(*there[0]).name, "a1");
    deny_all(&mut graph);
    assert!(matches!(decide(&graph, node(&graph, 1_000_000)), Step::Release(gone) if gone.len() == 99_999));
    graph.observe(apples, &with_many(4, |_| uid(1), |_| "a1".into()));
    assert_eq!(graph.len(), (2, 0));
    graph.vanished(apples, &uid(1_000_000));
    assert_eq!(graph.len(), (0, 1));
}

#[test]
fn of_very_many_owners_that_are_not_known_some_are_asked_for_at_a_time_and_all_in_the_end() {
    let (mut graph, apples) = orchard();
    let owners: Vec<u64> = (2..1000).collect();
    graph.observe(apples, &fruit(1, 1, &owners));
    graph.hints();
    let mut asked = 0;
    while let Step::Ask(owners) = decide(&graph, node(&graph, 1)) {
        assert!(owners.len() <= 64, "{}", owners.len());
        asked += owners.len();
        owners.into_iter().for_each(|owner| graph.absent(owner));
    }
    assert_eq!(asked, 998);
    assert!(matches!(decide(&graph, node(&graph, 1)), Step::Delete { .. }));
}
