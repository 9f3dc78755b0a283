//! What is stored: one ordered table per kind, one counter of versions, and each table's recent history.

mod table;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::history::{Change, Event};
use super::kinds::Kind;
use super::kinds::built_in::KINDS;
use super::kinds::served::Served;
use super::stored::{ByKey, Stored};
use table::Table;

/// All objects of all kinds.
#[derive(Debug)]
pub struct Store {
    version: u64,
    tables: HashMap<(&'static str, &'static str), Table>,
    history: usize,
    /// What is served, which definitions change.
    pub served: Served,
}

impl Store {
    /// An empty store whose first write gets the version after `version`.
    pub fn new(version: u64, history: usize) -> Self {
        let tables = KINDS
            .iter()
            .map(|kind| ((kind.group, kind.resource), Table::new(version)))
            .collect();
        Store {
            version,
            tables,
            history,
            served: Served::default(),
        }
    }

    /// The version of the last write.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The objects of `kind`.
    pub fn table(&self, kind: &'static Kind) -> &Table {
        &self.tables[&(kind.group, kind.resource)]
    }

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

    /// Resets the table of a kind, as the server does when the kind's definition changes: its watches end, and clients
    /// with an older version are answered that it is too old.
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
        let history = self.history;
        let table = self.table_mut(kind);
        table.events.push_back(event);
        while table.events.len() > history {
            if let Some(event) = table.events.pop_front() {
                table.dropped += 1;
                table.floor = table.floor.max(event.version);
            }
        }
        table.changed.send_replace(());
    }

    fn table_mut(&mut self, kind: &'static Kind) -> &mut Table {
        self.tables
            .entry((kind.group, kind.resource))
            .or_insert_with(|| Table::new(self.version))
    }
}
