//! Random clusters, in which everything happens at any time.

use proptest::prelude::*;

use super::{
    collector::Collector,
    rules,
    world::{KINDS, Key, UNSERVED, World, absent_owner, uid},
};
use crate::collector::{decide::Policy, graph::Reference};

/// Numbers from which everything else follows, so that proptest can shrink a failure.
struct Choices<'a>(std::slice::Iter<'a, u16>);

impl Choices<'_> {
    fn up_to(&mut self, most: usize) -> usize {
        usize::from(self.0.next().copied().unwrap_or(0)) % most.max(1)
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.up_to(many) == many - 1
    }
}

fn some_object(world: &World, choices: &mut Choices<'_>) -> Option<Key> {
    let index = choices.up_to(world.objects.len());
    world.objects.keys().nth(index).cloned()
}

fn reference(world: &World, choices: &mut Choices<'_>) -> Reference {
    let blocking = choices.one_in(2);
    let Some(key) = some_object(world, choices) else {
        return Reference {
            blocking,
            ..absent_owner(KINDS[0].0)
        };
    };
    let owner = &world.objects[&key];
    let mut reference = Reference {
        api_version: if choices.one_in(2) { "v1" } else { "v2" }.into(),
        kind: key.0.clone(),
        name: key.2.clone(),
        uid: owner.seen.uid.clone(),
        blocking,
    };
    match choices.up_to(16) {
        0 => reference.kind = KINDS[choices.up_to(KINDS.len())].0.into(),
        1 => reference.name = format!("x{}", choices.up_to(3)),
        // A UID of the past or one never used. No client can know the UID of a future object.
        2 => reference.uid = uid(1 + choices.up_to(usize::try_from(world.uids).unwrap_or(1)) as u64),
        4 => reference.uid = uid(9_999_999),
        3 => reference.kind = UNSERVED.into(),
        _ => {}
    }
    reference
}

fn policy(choices: &mut Choices<'_>) -> Policy {
    [Policy::Background, Policy::Foreground, Policy::Orphan][choices.up_to(3)]
}

/// A client's random request.
fn act(world: &mut World, choices: &mut Choices<'_>) {
    match choices.up_to(8) {
        0..4 => {
            let count = choices.up_to(4);
            let owners = (0..count).map(|_| reference(world, choices)).collect();
            let (kind, _) = KINDS[choices.up_to(KINDS.len())];
            let (namespace, name) = (["n1", "n2"][choices.up_to(2)], format!("x{}", choices.up_to(6)));
            let has_other_finalizer = choices.one_in(8);
            world.create(kind, namespace, &name, owners, has_other_finalizer);
        }
        4 | 5 => {
            if let Some(key) = some_object(world, choices) {
                let how = policy(choices);
                world.delete(&key, how);
            }
        }
        6 => {
            if let Some(key) = some_object(world, choices) {
                let mut object = world.objects[&key].clone();
                if choices.one_in(2) && !object.seen.owners.is_empty() {
                    let index = choices.up_to(object.seen.owners.len());
                    object.seen.owners.remove(index);
                } else {
                    object.seen.owners.push(reference(world, choices));
                }
                world.put(key, object);
            }
        }
        _ => {
            if let Some(key) = some_object(world, choices) {
                world.edit(&key, |object| object.has_other_finalizer = false);
            }
        }
    }
}

/// Aborts lists and watches, withdraws kinds and restores them.
fn disturb(world: &mut World, collector: &mut Collector, choices: &mut Choices<'_>) {
    let index = choices.up_to(KINDS.len());
    let kind = KINDS[index].0;
    match choices.up_to(8) {
        0 | 1 => collector.list(world, index),
        2 | 3 => collector.abort_watch(index),
        4 => collector.discover(world, index),
        5 => world.restore(kind),
        6 => world.withdraw(kind),
        _ => {
            world.withdraw(kind);
            // Deleting a CustomResourceDefinition deletes all its objects.
            if choices.one_in(2) {
                world.objects.retain(|key, _| key.0 != kind);
            }
            collector.discover(world, index);
        }
    }
}

fn play(numbers: &[u16]) {
    let mut choices = Choices(numbers.iter());
    let (mut world, mut collector) = (World::default(), Collector::new());
    while !choices.0.as_slice().is_empty() {
        match choices.up_to(16) {
            0..4 => act(&mut world, &mut choices),
            4..8 => {
                let index = choices.up_to(KINDS.len());
                collector.event(&mut world, index);
            }
            8 if choices.one_in(2) => disturb(&mut world, &mut collector, &mut choices),
            9 => {
                let which = choices.up_to(64);
                collector.deliver_answer(which);
            }
            _ => {
                let which = choices.up_to(64);
                collector.process_item(&mut world, which);
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
    for key in world.objects.keys() {
        let violation = rules::violation(world, key);
        assert_eq!(violation, None, "{key:?} of {world:#?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_object_with_an_owner_is_deleted_and_all_garbage_is(
        numbers in proptest::collection::vec(0u16..=u16::MAX, 0..400),
    ) {
        play(&numbers);
    }
}
