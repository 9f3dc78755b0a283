//! Random clusters, in which everything happens at any time.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{
    collector::Collector,
    judge,
    world::{KINDS, Key, UNSERVED, World, never, uid},
};
use crate::collector::{
    decide::Policy,
    graph::{Reference, SpaceId},
};

/// Numbers from which everything else follows, so that proptest can shrink a failure.
struct Dice<'a>(std::slice::Iter<'a, u16>);

impl Dice<'_> {
    fn up_to(&mut self, most: usize) -> usize {
        usize::from(self.0.next().copied().unwrap_or(0)) % most.max(1)
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.up_to(many) == many - 1
    }
}

fn some_object(world: &World, dice: &mut Dice<'_>) -> Option<Key> {
    let place = dice.up_to(world.objects.len());
    world.objects.keys().nth(place).cloned()
}

fn reference(world: &World, dice: &mut Dice<'_>) -> Reference {
    let blocking = dice.one_in(2);
    let Some(key) = some_object(world, dice) else {
        return Reference {
            blocking,
            ..never(KINDS[0].0)
        };
    };
    let owner = &world.objects[&key];
    let mut reference = Reference {
        api_version: if dice.one_in(2) { "v1" } else { "v2" }.into(),
        kind: key.0.clone(),
        name: key.2.clone(),
        uid: owner.seen.uid.clone(),
        blocking,
    };
    match dice.up_to(16) {
        0 => reference.kind = KINDS[dice.up_to(KINDS.len())].0.into(),
        1 => reference.name = format!("x{}", dice.up_to(3)),
        // A UID of the past or one never used. No client can know the UID of a future object.
        2 => reference.uid = uid(1 + dice.up_to(usize::try_from(world.uids).unwrap_or(1)) as u64),
        4 => reference.uid = uid(9_999_999),
        3 => reference.kind = UNSERVED.into(),
        _ => {}
    }
    reference
}

fn policy(dice: &mut Dice<'_>) -> Policy {
    [Policy::Background, Policy::Foreground, Policy::Orphan][dice.up_to(3)]
}

/// A client's random request.
fn act(world: &mut World, dice: &mut Dice<'_>) {
    match dice.up_to(8) {
        0..4 => {
            let count = dice.up_to(4);
            let owners = (0..count).map(|_| reference(world, dice)).collect();
            let (kind, _) = KINDS[dice.up_to(KINDS.len())];
            let (namespace, name) = (["n1", "n2"][dice.up_to(2)], format!("x{}", dice.up_to(6)));
            let held = dice.one_in(8);
            world.create(kind, namespace, &name, owners, held);
        }
        4 | 5 => {
            if let Some(key) = some_object(world, dice) {
                let how = policy(dice);
                world.delete(&key, how);
            }
        }
        6 => {
            if let Some(key) = some_object(world, dice) {
                let mut object = world.objects[&key].clone();
                if dice.one_in(2) && !object.seen.owners.is_empty() {
                    let place = dice.up_to(object.seen.owners.len());
                    object.seen.owners.remove(place);
                } else {
                    object.seen.owners.push(reference(world, dice));
                }
                world.put(key, object);
            }
        }
        _ => {
            if let Some(key) = some_object(world, dice) {
                world.edit(&key, |object| object.held = false);
            }
        }
    }
}

/// Aborts lists and watches, withdraws kinds and restores them.
fn disturb(world: &mut World, collector: &mut Collector, dice: &mut Dice<'_>) {
    let place = dice.up_to(KINDS.len());
    let kind = KINDS[place].0;
    match dice.up_to(8) {
        0 | 1 => collector.list(world, place),
        2 | 3 => collector.give_up(place),
        4 => collector.discover(world, place),
        5 => world.restore(kind),
        6 => world.withdraw(kind),
        _ => {
            world.withdraw(kind);
            // Deleting a CustomResourceDefinition deletes all its objects.
            if dice.one_in(2) {
                world.objects.retain(|key, _| key.0 != kind);
            }
            collector.discover(world, place);
        }
    }
}

fn play(numbers: &[u16]) {
    let mut dice = Dice(numbers.iter());
    let (mut world, mut collector) = (World::default(), Collector::new());
    while !dice.0.as_slice().is_empty() {
        match dice.up_to(16) {
            0..4 => act(&mut world, &mut dice),
            4..8 => {
                let place = dice.up_to(KINDS.len());
                collector.event(&mut world, place);
            }
            8 if dice.one_in(2) => disturb(&mut world, &mut collector, &mut dice),
            9 => {
                let which = dice.up_to(64);
                collector.answer(which);
            }
            _ => {
                let which = dice.up_to(64);
                collector.follow(&mut world, which);
            }
        }
    }
    check(&mut world, &mut collector);
    // Objects kept because of an unserved kind are decided on again.
    for (kind, _) in KINDS {
        world.restore(kind);
    }
    check(&mut world, &mut collector);
}

fn check(world: &mut World, collector: &mut Collector) {
    collector.settle(world);
    let served = world.objects.keys().filter(|key| world.serves(&key.0)).count();
    assert_eq!(collector.known(), served, "{world:#?}");
    assert_eq!(collector.graph.counts(), collector.counted(), "{world:#?}");
    let graph = &collector.graph;
    let nodes = || graph.nodes().map(|id| (id, graph.node(id)));
    for kind in &collector.kinds {
        let mut of_kind = graph.of_kind(kind.id);
        of_kind.sort_unstable();
        let expected: Vec<_> = nodes()
            .filter(|(_, node)| node.kind == kind.id)
            .map(|(id, _)| id)
            .collect();
        assert_eq!(of_kind, expected, "{world:#?}");
    }
    let spaces: BTreeSet<_> = nodes().map(|(_, node)| node.namespace).collect();
    let named = spaces.iter().filter(|&&space| space != SpaceId::NONE).count();
    assert_eq!(graph.spaces(), named, "names of namespaces without nodes are not kept");
    for key in world.objects.keys() {
        let complaint = judge::complaint(world, key);
        assert_eq!(complaint, None, "{key:?} of {world:#?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_deleted_that_has_an_owner_and_everything_that_must_go_goes(
        numbers in proptest::collection::vec(0u16..=u16::MAX, 0..400),
    ) {
        play(&numbers);
    }
}
