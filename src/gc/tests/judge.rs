//! The rules, written down plainly: what a world that shows everything at once asks for.

use super::world::{Key, Object, World, is_namespaced};
use crate::gc::graph::Reference;

/// What an owner reference leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Owner {
    Solid,
    Waiting,
    Absent,
    /// Nobody can tell.
    Untold,
}

pub fn owner(world: &World, dependent: &Object, reference: &Reference) -> Owner {
    let namespace = match is_namespaced(&reference.kind) {
        None => return Owner::Untold,
        Some(true) if dependent.seen.namespace.is_empty() => return Owner::Untold,
        Some(true) => dependent.seen.namespace.clone(),
        Some(false) => String::new(),
    };
    let key = (reference.kind.clone(), namespace, reference.name.clone());
    match world.objects.get(&key).filter(|owner| owner.seen.uid == reference.uid) {
        None => Owner::Absent,
        Some(owner) if owner.seen.deleting && owner.seen.foreground => Owner::Waiting,
        Some(_) => Owner::Solid,
    }
}

pub fn blocks(world: &World, owner_key: &Key, dependent: &Object) -> bool {
    let owner_object = &world.objects[owner_key];
    dependent.seen.owners.iter().any(|reference| {
        reference.blocking
            && reference.uid == owner_object.seen.uid
            && reference.kind == owner_key.0
            && reference.name == owner_key.2
            && (owner_key.1.is_empty() || owner_key.1 == dependent.seen.namespace)
    })
}

/// Why an object cannot stay as it is.
pub fn complaint(world: &World, key: &Key) -> Option<String> {
    let object = &world.objects[key];
    if object.seen.deleting {
        if object.seen.orphan {
            return Some("its dependents are not released".to_owned());
        }
        let mut others = world.objects.iter().filter(|(other, _)| *other != key);
        let blocked = others.any(|(_, other)| blocks(world, key, other));
        return (object.seen.foreground && !blocked).then(|| "nothing blocks it any more".to_owned());
    }
    let owners: Vec<Owner> = object.seen.owners.iter().map(|it| owner(world, object, it)).collect();
    let has = |kind| owners.contains(&kind);
    if owners.is_empty() || has(Owner::Untold) {
        return None;
    }
    if !has(Owner::Solid) {
        return Some("none of its owners stays".to_owned());
    }
    (has(Owner::Absent) || has(Owner::Waiting)).then(|| "it names owners that are gone or go".to_owned())
}

/// Whether it would be wrong to delete an object now.
pub fn must_stay(world: &World, key: &Key) -> bool {
    let object = &world.objects[key];
    let keeps = |reference: &Reference| match owner(world, object, reference) {
        Owner::Solid => true,
        Owner::Waiting | Owner::Absent => false,
        // A UID that was deleted is nowhere, of whatever kind it is said to be.
        Owner::Untold => !world.is_dead(&reference.uid),
    };
    object.seen.owners.is_empty() || object.seen.owners.iter().any(keeps)
}
