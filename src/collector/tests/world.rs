//! A simulated cluster: objects, versions, and events that are delivered at any time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::collector::{
    decide::Policy,
    graph::{Observed, Reference},
};

/// Served kinds, and whether they are namespaced.
pub const KINDS: [(&str, bool); 3] = [("Apple", true), ("Birch", true), ("Cedar", false)];
/// A kind that is not served.
pub const UNSERVED: &str = "Dodo";

/// Kind, namespace and name of an object.
pub type Key = (String, String, String);

/// An object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub seen: Observed,
    /// It has a finalizer of another controller.
    pub has_other_finalizer: bool,
}

#[derive(Debug, Clone)]
pub enum Event {
    Seen(Observed),
    /// A UID, and the version of its deletion.
    Gone(String, u64),
    /// The watch ends; a list has to follow.
    Broken,
}

/// Answer to a GET.
#[derive(Debug, Clone)]
pub enum GetAnswer {
    Exists(Box<Observed>),
    Gone,
    /// The kind is not served.
    NoRoute,
}

#[derive(Debug, Default)]
pub struct World {
    pub objects: BTreeMap<Key, Object>,
    pub version: u64,
    pub uids: u64,
    pub events: BTreeMap<String, VecDeque<Event>>,
    /// Kinds that are not served at the moment. Their objects stay.
    pub withdrawn: BTreeSet<String>,
    /// Objects that were deleted when their finalizer `orphan` was removed.
    pub orphaned: BTreeSet<(Key, String)>,
}

/// Why a write was refused.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    Gone,
    Conflict,
    NoRoute,
}

pub fn is_namespaced(kind: &str) -> Option<bool> {
    KINDS
        .iter()
        .find(|(name, _)| *name == kind)
        .map(|(_, namespaced)| *namespaced)
}

impl World {
    pub fn create(
        &mut self,
        kind: &str,
        namespace: &str,
        name: &str,
        owners: Vec<Reference>,
        has_other_finalizer: bool,
    ) -> bool {
        let namespace = if is_namespaced(kind) == Some(true) {
            namespace
        } else {
            ""
        };
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        if self.objects.contains_key(&key) {
            return false;
        }
        self.uids += 1;
        let seen = Observed {
            uid: uid(self.uids),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            owners,
            ..Observed::default()
        };
        self.put(
            key,
            Object {
                seen,
                has_other_finalizer,
            },
        );
        true
    }

    /// Whether an object with this UID existed and is deleted.
    pub fn is_dead(&self, text: &str) -> bool {
        let was_there = (1..=self.uids).any(|number| uid(number) == text);
        was_there && self.objects.values().all(|object| object.seen.uid != text)
    }

    /// A client's DELETE. It sets the policy's finalizer and removes the others.
    pub fn delete(&mut self, key: &Key, policy: Policy) {
        let Some(mut object) = self.objects.get(key).cloned() else {
            return;
        };
        object.seen.orphan = policy == Policy::Orphan;
        object.seen.foreground = policy == Policy::Foreground;
        object.seen.deleting = true;
        self.put(key.clone(), object);
    }

    pub fn serves(&self, kind: &str) -> bool {
        !self.withdrawn.contains(kind)
    }

    /// Stops serving the kind. Later events are lost.
    pub fn withdraw(&mut self, kind: &str) {
        self.withdrawn.insert(kind.to_owned());
        self.events.insert(kind.to_owned(), VecDeque::from([Event::Broken]));
    }

    pub fn restore(&mut self, kind: &str) {
        self.withdrawn.remove(kind);
    }

    pub fn get(&self, key: &Key) -> GetAnswer {
        if !self.serves(&key.0) {
            return GetAnswer::NoRoute;
        }
        let object = self.objects.get(key);
        object.map_or(GetAnswer::Gone, |object| {
            GetAnswer::Exists(Box::new(object.seen.clone()))
        })
    }

    /// As [`World::change`].
    pub fn remove_orphan_finalizer(&mut self, key: &Key, known: &Observed) -> Result<(), Refused> {
        self.change(key, known, |object| object.seen.orphan = false)?;
        let successor = self.objects.get(key);
        if successor.is_none_or(|object| object.seen.uid != known.uid) {
            self.orphaned.insert((key.clone(), known.uid.clone()));
        }
        Ok(())
    }

    /// Changes an object, with UID and version as preconditions.
    pub fn change(&mut self, key: &Key, known: &Observed, change: impl FnOnce(&mut Object)) -> Result<(), Refused> {
        if !self.serves(&key.0) {
            return Err(Refused::NoRoute);
        }
        let object = self.objects.get(key).filter(|object| object.seen.uid == known.uid);
        let mut object = object.cloned().ok_or(Refused::Gone)?;
        if object.seen.version != known.version {
            return Err(Refused::Conflict);
        }
        change(&mut object);
        self.put(key.clone(), object);
        Ok(())
    }

    /// Changes an object without preconditions.
    pub fn edit(&mut self, key: &Key, change: impl FnOnce(&mut Object)) {
        let mut object = self.objects[key].clone();
        change(&mut object);
        self.put(key.clone(), object);
    }

    pub fn put(&mut self, key: Key, mut object: Object) {
        if self.objects.get(&key) == Some(&object) {
            return;
        }
        self.version += 1;
        object.seen.version = self.version;
        let stays = object.has_other_finalizer || object.seen.orphan || object.seen.foreground;
        let event = if object.seen.deleting && !stays {
            Event::Gone(object.seen.uid.clone(), self.version)
        } else {
            Event::Seen(object.seen.clone())
        };
        if self.serves(&key.0) {
            self.events.entry(key.0.clone()).or_default().push_back(event.clone());
        }
        match event {
            Event::Seen(_) => self.objects.insert(key, object),
            Event::Gone(..) | Event::Broken => self.objects.remove(&key),
        };
    }
}

/// A reference to an existing object.
pub fn to(world: &World, kind: &str, namespace: &str, name: &str, blocking: bool) -> Reference {
    let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
    Reference {
        api_version: "v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: world.objects[&key].seen.uid.clone(),
        blocking,
    }
}

/// A reference to an object that never existed.
pub fn absent_owner(kind: &str) -> Reference {
    Reference {
        api_version: "v1".into(),
        kind: kind.into(),
        name: "never".into(),
        uid: uid(9_999_999),
        blocking: false,
    }
}

pub fn uid(number: u64) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
}
