//! What is stored: one ordered table per kind, one counter of versions, and each table's recent history.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

use super::history::{Change, Event};
use super::kinds::Kind;
use super::kinds::built_in::KINDS;
use super::kinds::served::Served;
use super::stored::{ByKey, Stored};

/// All objects of all kinds.
#[derive(Debug)]
pub struct Store {
    version: u64,
    reached: watch::Sender<u64>,
    tables: HashMap<(&'static str, &'static str), Table>,
    history: usize,
    /// What is served, which definitions change.
    pub served: Served,
}

/// The objects of one kind and what happened to them lately.
#[derive(Debug)]
pub struct Table {
    objects: BTreeSet<ByKey>,
    events: VecDeque<Event>,
    /// How many events have ever been dropped from the front.
    dropped: u64,
    /// Nothing is known about what happened up to this version.
    floor: u64,
    changed: watch::Sender<()>,
    /// How often it began anew.
    life: u64,
}

/// What is wrong with a version that a client wants to start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// The oldest version that is still possible.
    pub floor: u64,
}

// === impl Store ===

impl Store {
    /// An empty store whose first write gets the version after `version`.
    #[must_use]
    pub fn new(version: u64, history: usize) -> Self {
        let tables = KINDS
            .iter()
            .map(|kind| ((kind.group, kind.resource), Table::new(version)))
            .collect();
        Store {
            version,
            reached: watch::Sender::new(version),
            tables,
            history,
            served: Served::default(),
        }
    }

    /// The version of the last write.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Tells each new version.
    #[must_use]
    pub fn reached(&self) -> watch::Receiver<u64> {
        self.reached.subscribe()
    }

    /// The objects of `kind`.
    #[must_use]
    pub fn table(&self, kind: &'static Kind) -> &Table {
        &self.tables[&(kind.group, kind.resource)]
    }

    /// One object.
    #[must_use]
    pub fn get(&self, kind: &'static Kind, key: &str) -> Option<&Arc<Stored>> {
        self.table(kind).objects.get(key).map(|ByKey(object)| object)
    }

    /// Stores `object` under `key`, new or in place of what is there, under a new version.
    pub fn put(&mut self, kind: &'static Kind, key: &str, object: Value) -> Arc<Stored> {
        let version = self.next();
        let stored = Arc::new(Stored::new(key, object, version));
        let objects = &mut self.table_mut(kind).objects;
        let previous = objects
            .replace(ByKey(Arc::clone(&stored)))
            .map(|ByKey(previous)| previous);
        let change = if previous.is_some() {
            Change::Modified
        } else {
            Change::Added
        };
        self.record(
            kind,
            Event {
                version,
                change,
                object: Arc::clone(&stored),
                previous,
            },
        );
        stored
    }

    /// Removes an object; the answer is its last state under the version of the removal.
    pub fn remove(&mut self, kind: &'static Kind, key: &str) -> Option<Arc<Stored>> {
        let ByKey(previous) = self.table_mut(kind).objects.take(key)?;
        let version = self.next();
        let object = Arc::new(previous.at(version));
        self.record(
            kind,
            Event {
                version,
                change: Change::Deleted,
                object: Arc::clone(&object),
                previous: Some(previous),
            },
        );
        Some(object)
    }

    /// Forgets all history up to now, as etcd does at a compaction. Watches that are running go on.
    pub fn compact(&mut self) {
        for table in self.tables.values_mut() {
            table.floor = self.version;
        }
    }

    /// Lets the table of a kind begin anew, as the server does when the definition of the kind changes: its watches end,
    /// and whoever comes with an older version is told that it is too old.
    pub fn restart(&mut self, kind: &'static Kind) {
        let version = self.version;
        let table = self.table_mut(kind);
        table.life += 1;
        table.floor = version;
        table.changed.send_replace(());
    }

    fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn record(&mut self, kind: &'static Kind, event: Event) {
        let (version, history) = (event.version, self.history);
        let table = self.table_mut(kind);
        table.events.push_back(event);
        while table.events.len() > history {
            if let Some(event) = table.events.pop_front() {
                table.dropped += 1;
                table.floor = table.floor.max(event.version);
            }
        }
        table.changed.send_replace(());
        self.reached.send_replace(version);
    }

    fn table_mut(&mut self, kind: &'static Kind) -> &mut Table {
        self.tables
            .entry((kind.group, kind.resource))
            .or_insert_with(|| Table::new(self.version))
    }
}

// === impl Table ===

impl Table {
    fn new(floor: u64) -> Self {
        Table {
            objects: BTreeSet::new(),
            events: VecDeque::new(),
            dropped: 0,
            floor,
            changed: watch::Sender::new(()),
            life: 0,
        }
    }

    /// Wakes whoever follows this table at each change.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The objects whose key starts with `prefix`, from `start` on, in order.
    pub fn range<'a>(&'a self, prefix: &str, start: &str) -> impl Iterator<Item = &'a Arc<Stored>> + use<'a> {
        let start = if start > prefix { start } else { prefix };
        let range = self.objects.range::<str, _>((Bound::Included(start), Bound::Unbounded));
        let prefix = prefix.to_owned();
        range
            .map(|ByKey(object)| object)
            .take_while(move |object| object.key().starts_with(&prefix))
    }

    /// As [`Table::range`], but as it was at `version`, which is not in the future.
    ///
    /// # Errors
    /// The history needed for that is gone.
    pub fn range_at<'a>(
        &'a self,
        prefix: &str,
        start: &str,
        version: u64,
    ) -> Result<impl Iterator<Item = &'a Arc<Stored>> + use<'a>, Compacted> {
        self.check(version)?;
        let mut then: BTreeMap<&str, Option<&Arc<Stored>>> = BTreeMap::new();
        // From the newest back: the oldest change after `version` decides what was there.
        for event in self.after(version) {
            let key = event.object.key();
            if key.starts_with(prefix) && key >= start {
                then.insert(key, event.previous.as_ref());
            }
        }
        let mut then = then.into_iter().peekable();
        let mut now = self.range(prefix, start).peekable();
        Ok(std::iter::from_fn(move || {
            loop {
                let order = match (then.peek(), now.peek()) {
                    (Some((key, _)), Some(object)) => (*key).cmp(object.key()),
                    (Some(_), None) => Ordering::Less,
                    (None, _) => Ordering::Greater,
                };
                if order == Ordering::Greater {
                    return now.next();
                }
                if order == Ordering::Equal {
                    now.next();
                }
                if let Some((_, Some(object))) = then.next() {
                    return Some(object);
                }
            }
        }))
    }

    /// How many objects there were at `version`, as far as is still known.
    #[must_use]
    pub fn len_at(&self, version: u64) -> usize {
        self.after(version)
            .fold(self.objects.len(), |len, event| match event.change {
                Change::Added => len.saturating_sub(1),
                Change::Modified => len,
                Change::Deleted => len + 1,
            })
    }

    fn after(&self, version: u64) -> impl Iterator<Item = &Event> {
        self.events
            .iter()
            .rev()
            .take_while(move |event| event.version > version)
    }

    /// Whether everything after `version` is still known.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self, version: u64) -> Result<(), Compacted> {
        if version < self.floor {
            Err(Compacted { floor: self.floor })
        } else {
            Ok(())
        }
    }

    /// How often it began anew.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The place in the history after the last event.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.dropped + self.events.len() as u64
    }

    /// The events from `place` on, or `None` if some of them were dropped.
    pub fn since(&self, place: u64) -> Option<impl Iterator<Item = &Event>> {
        let skip = usize::try_from(place.checked_sub(self.dropped)?).ok()?;
        Some(self.events.iter().skip(skip))
    }

    /// The place in the history of the first event after `version`.
    #[must_use]
    pub fn place_after(&self, version: u64) -> u64 {
        self.dropped + self.events.partition_point(|event| event.version <= version) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::kinds;
    use serde_json::json;

    fn store_of(names: &[&str]) -> (Store, &'static Kind) {
        let kind = kinds::find("", "v1", "configmaps").unwrap();
        let mut store = Store::new(10, 4);
        for name in names {
            store.put(kind, &kind.key("ns", name), json!({ "metadata": { "name": name } }));
        }
        (store, kind)
    }

    fn keys<'a>(objects: impl Iterator<Item = &'a Arc<Stored>>) -> Vec<&'a str> {
        objects.map(|object| object.key()).collect()
    }

    #[test]
    fn the_past_is_what_it_was() {
        let (mut store, kind) = store_of(&["a", "b"]);
        store.remove(kind, "ns/a");
        store.put(kind, "ns/c", json!({ "metadata": { "name": "c" } }));
        let table = store.table(kind);
        assert_eq!(keys(table.range_at("ns/", "", 11).unwrap()), ["ns/a"]);
        assert_eq!(keys(table.range_at("ns/", "", 12).unwrap()), ["ns/a", "ns/b"]);
        assert_eq!(keys(table.range_at("ns/", "ns/a\0", 12).unwrap()), ["ns/b"]);
        assert_eq!(keys(table.range_at("ns/", "", 14).unwrap()), ["ns/b", "ns/c"]);
        assert_eq!([11, 12, 13, 14].map(|version| table.len_at(version)), [1, 2, 1, 2]);
    }

    #[test]
    fn what_was_dropped_or_compacted_is_said_to_be_gone() {
        let (mut store, kind) = store_of(&["a", "b", "c", "d", "e"]);
        let table = store.table(kind);
        assert_eq!(table.check(10), Err(Compacted { floor: 11 }));
        assert!(table.since(0).is_none());
        assert_eq!(table.since(1).unwrap().count(), 4);
        store.compact();
        assert_eq!(store.table(kind).check(14), Err(Compacted { floor: 15 }));
        assert_eq!(store.table(kind).since(1).unwrap().count(), 4);
    }

    #[test]
    fn a_namespace_whose_name_continues_another_is_not_part_of_it() {
        let kind = kinds::find("", "v1", "configmaps").unwrap();
        let mut store = Store::new(0, 4);
        for key in ["a/x", "a-b/x", "b/x"] {
            store.put(kind, key, json!({}));
        }
        let all = store.table(kind).range("", "");
        assert_eq!(keys(all), ["a-b/x", "a/x", "b/x"]);
        let one = store.table(kind).range("a/", "");
        assert_eq!(keys(one), ["a/x"]);
    }
}
