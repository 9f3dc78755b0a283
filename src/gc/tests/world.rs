//! A cluster: objects, their versions, and events that come when they come.

use std::collections::{BTreeMap, VecDeque};

use crate::gc::{
    decide::Policy,
    graph::{Observed, Reference},
};

/// Kinds that are served: their names, and whether they are namespaced.
pub const KINDS: [(&str, bool); 3] = [("Apple", true), ("Birch", true), ("Cedar", false)];
/// A kind that is not served.
pub const UNSERVED: &str = "Dodo";

/// Where an object is.
pub type Key = (String, String, String);

/// An object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub seen: Observed,
    /// A finalizer of somebody else.
    pub held: bool,
}

#[derive(Debug, Clone)]
pub enum Event {
    Seen(Observed),
    Gone(String),
}

#[derive(Debug, Default)]
pub struct World {
    pub objects: BTreeMap<Key, Object>,
    pub version: u64,
    pub uids: u64,
    pub events: BTreeMap<String, VecDeque<Event>>,
}

/// Why a write was refused.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    Gone,
    Conflict,
}

pub fn is_namespaced(kind: &str) -> Option<bool> {
    KINDS
        .iter()
        .find(|(name, _)| *name == kind)
        .map(|(_, namespaced)| *namespaced)
}

impl World {
    pub fn create(&mut self, kind: &str, namespace: &str, name: &str, owners: Vec<Reference>, held: bool) -> bool {
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
        self.put(key, Object { seen, held });
        true
    }

    /// It was there once, and is no more.
    pub fn is_dead(&self, text: &str) -> bool {
        let was_there = (1..=self.uids).any(|number| uid(number) == text);
        was_there && self.objects.values().all(|object| object.seen.uid != text)
    }

    /// As a client sends it: the finalizers of the policy come and go with it.
    pub fn delete(&mut self, key: &Key, policy: Policy) {
        let Some(mut object) = self.objects.get(key).cloned() else {
            return;
        };
        object.seen.orphan = policy == Policy::Orphan;
        object.seen.foreground = policy == Policy::Foreground;
        object.seen.deleting = true;
        self.put(key.clone(), object);
    }

    /// With uid and version as preconditions.
    pub fn change(&mut self, key: &Key, known: &Observed, change: impl FnOnce(&mut Object)) -> Result<(), Refused> {
        let object = self.objects.get(key).filter(|object| object.seen.uid == known.uid);
        let mut object = object.cloned().ok_or(Refused::Gone)?;
        if object.seen.version != known.version {
            return Err(Refused::Conflict);
        }
        change(&mut object);
        self.put(key.clone(), object);
        Ok(())
    }

    pub fn put(&mut self, key: Key, mut object: Object) {
        if self.objects.get(&key) == Some(&object) {
            return;
        }
        self.version += 1;
        object.seen.version = self.version.to_string();
        let events = self.events.entry(key.0.clone()).or_default();
        let stays = object.held || object.seen.orphan || object.seen.foreground;
        if object.seen.deleting && !stays {
            events.push_back(Event::Gone(object.seen.uid));
            self.objects.remove(&key);
        } else {
            events.push_back(Event::Seen(object.seen.clone()));
            self.objects.insert(key, object);
        }
    }
}

/// A reference to an object as it is.
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

pub fn uid(number: u64) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
}
