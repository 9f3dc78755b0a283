//! The rules, written plainly: what has to become of a cluster, if everything is known at once.

use super::world::{Key, Object, World, is_namespaced};
use crate::collector::graph::Reference;

/// State of an owner.
#[derive(Debug, PartialEq, Eq)]
pub enum Owner {
    Existing,
    Waiting,
    Absent,
    /// Unresolved.
    Unresolved,
}

/// Key of an owner; `None` if its kind is unknown or its namespace is missing.
fn owner_key(dependent: &Object, reference: &Reference) -> Option<Key> {
    let namespace = match is_namespaced(&reference.kind)? {
        true if dependent.seen.namespace.is_empty() => return None,
        true => dependent.seen.namespace.clone(),
        false => String::new(),
    };
    Some((reference.kind.clone(), namespace, reference.name.clone()))
}

/// Whether the owner was deleted with its dependents orphaned.
fn was_orphaned_by(world: &World, dependent: &Object, reference: &Reference) -> bool {
    let key = owner_key(dependent, reference);
    key.is_some_and(|key| world.orphaned.contains(&(key, reference.uid.clone())))
}

pub fn owner(world: &World, dependent: &Object, reference: &Reference) -> Owner {
    let Some(key) = owner_key(dependent, reference) else {
        return Owner::Unresolved;
    };
    match world.objects.get(&key).filter(|owner| owner.seen.uid == reference.uid) {
        None => Owner::Absent,
        Some(owner) if owner.seen.deleting && owner.seen.foreground => Owner::Waiting,
        Some(_) => Owner::Existing,
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

/// Why an object cannot stay in its state. Objects of unserved kinds always can.
pub fn violation(world: &World, key: &Key) -> Option<String> {
    let object = &world.objects[key];
    if !world.serves(&key.0) {
        return None;
    }
    if object.seen.deleting {
        if object.seen.orphan {
            return Some("its dependents are not released".to_owned());
        }
        let is_other = |other: &Key| other != key && world.serves(&other.0);
        let mut others = world.objects.iter().filter(|(other, _)| is_other(other));
        let blocked = others.any(|(_, other)| blocks(world, key, other));
        return (object.seen.foreground && !blocked).then(|| "nothing blocks it any more".to_owned());
    }
    if object.seen.owners.iter().any(|it| was_orphaned_by(world, object, it)) {
        return Some("it names an owner that left it behind".to_owned());
    }
    let delivered = |reference: &Reference| {
        if world.serves(&reference.kind) {
            owner(world, object, reference)
        } else {
            Owner::Unresolved
        }
    };
    let owners: Vec<Owner> = object.seen.owners.iter().map(delivered).collect();
    let has = |kind| owners.contains(&kind);
    if owners.is_empty() || has(Owner::Unresolved) {
        return None;
    }
    if !has(Owner::Existing) {
        return Some("none of its owners stays".to_owned());
    }
    (has(Owner::Absent) || has(Owner::Waiting)).then(|| "it names owners that are gone or go".to_owned())
}

/// Whether deleting the object now would be wrong, whether its owners are served or not.
pub fn must_stay(world: &World, key: &Key) -> bool {
    let object = &world.objects[key];
    let keeps = |reference: &Reference| match owner(world, object, reference) {
        _ if was_orphaned_by(world, object, reference) => true,
        Owner::Existing => true,
        Owner::Waiting | Owner::Absent => false,
        // A UID that was deleted does not exist as any kind.
        Owner::Unresolved => !world.is_dead(&reference.uid),
    };
    object.seen.owners.is_empty() || object.seen.owners.iter().any(keeps)
}
