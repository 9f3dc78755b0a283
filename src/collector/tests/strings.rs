//! Strings in owner references: the API server accepts any content, any length and any number of them.

use super::{
    cases::APPLE,
    unknown::{apples_graph, fruit, node},
    world::uid,
};
use crate::collector::{
    decide::{Step, decide},
    graph::{Graph, Observed, Reference, WorkItem},
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
    for item in graph.take_items() {
        if let WorkItem::GetOwner(id) = item
            && graph.contains(id)
            && graph.can_be_resolved(id)
        {
            graph.set_absent(id);
        }
    }
}

fn is_kept(reference: Reference) {
    let (mut graph, apples) = apples_graph();
    let delivered = format!("{reference:.200?}");
    // A second reference, to an absent owner.
    let gone = reference_to_nothing();
    graph.observe(apples, &owned(2, 2, vec![reference, gone]));
    deny_all(&mut graph);
    let step = decide(&graph, node(&graph, 2));
    assert!(
        matches!(&step, Step::Unresolved(owners) if owners.len() == 1),
        "{step:?}: {delivered}"
    );
}

fn reference_to_nothing() -> Reference {
    reference(APPLE, "never", &uid(9))
}

#[test]
fn nothing_is_concluded_from_a_reference_with_invalid_utf8() {
    spoiled(DAMAGED).into_iter().for_each(is_kept);
}

#[test]
fn nothing_is_concluded_from_a_reference_with_a_too_long_string() {
    spoiled(&"x".repeat(2000)).into_iter().for_each(is_kept);
}

#[test]
fn an_invalid_reference_stays_when_a_valid_one_with_its_uid_is_dropped() {
    let (mut graph, apples) = apples_graph();
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
        .find(|&id| graph.node(id).state.exists());
    assert_eq!(
        decide(&graph, node(&graph, 2)),
        Step::DropReferences(vec![one.unwrap()])
    );
    graph.apply_deletion(apples, &uid(1));
    graph.observe(apples, &owned(2, 3, vec![reference(APPLE, DAMAGED, &uid(1))]));
    let step = decide(&graph, node(&graph, 2));
    assert!(matches!(step, Step::Unresolved(_)), "{step:?}");
}

#[test]
fn an_object_with_invalid_utf8_is_kept_and_gets_no_node() {
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
        let (mut graph, apples) = apples_graph();
        graph.observe(apples, &object);
        assert_eq!((graph.len(), graph.take_items().len()), ((0, 0), 0), "{object:.200?}");
        graph.apply_deletion(apples, &object.uid);
        assert_eq!((graph.len(), graph.take_items().len()), ((0, 0), 0), "{object:.200?}");
    }
}

#[test]
fn unresolvable_references_share_a_node() {
    let (mut graph, apples) = apples_graph();
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
        graph.apply_deletion(apples, &uid(number));
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
fn the_maximum_number_of_references_is_applied_changed_and_removed() {
    let (mut graph, apples) = apples_graph();
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
    graph.apply_served(apples);
    assert_eq!(graph.len(), (100_001, 0));
    graph.apply_deletion(apples, &uid(1_000_000));
    assert_eq!(graph.len(), (0, 0));
}

#[test]
fn one_uid_may_be_named_at_the_maximum_number_of_coordinates() {
    let (mut graph, apples) = apples_graph();
    let many = |version| with_many(version, |_| uid(1), |number| format!("a{number}"));
    graph.observe(apples, &fruit(1, 1, &[]));
    graph.observe(apples, &many(2));
    graph.observe(apples, &many(3));
    assert_eq!(graph.len(), (100_001, 0));
    let places = graph.with_uid(&uid(1));
    let there: Vec<_> = places.iter().filter(|&&id| graph.node(id).state.exists()).collect();
    assert_eq!((places.len(), there.len()), (100_000, 1));
    assert_eq!(&*graph.node(*there[0]).name, "a1");
    deny_all(&mut graph);
    assert!(matches!(decide(&graph, node(&graph, 1_000_000)), Step::DropReferences(gone) if gone.len() == 99_999));
    graph.observe(apples, &with_many(4, |_| uid(1), |_| "a1".into()));
    assert_eq!(graph.len(), (2, 0));
    graph.apply_deletion(apples, &uid(1_000_000));
    assert_eq!(graph.len(), (0, 1));
}

#[test]
fn many_unknown_owners_get_a_limited_number_of_gets_at_a_time() {
    let (mut graph, apples) = apples_graph();
    let owners: Vec<u64> = (2..1000).collect();
    graph.observe(apples, &fruit(1, 1, &owners));
    graph.take_items();
    let mut asked = 0;
    while let Step::GetOwners(owners) = decide(&graph, node(&graph, 1)) {
        assert!(owners.len() <= 64, "{}", owners.len());
        asked += owners.len();
        owners.into_iter().for_each(|owner| graph.set_absent(owner));
    }
    assert_eq!(asked, 998);
    assert!(matches!(decide(&graph, node(&graph, 1)), Step::Delete(_)));
}
