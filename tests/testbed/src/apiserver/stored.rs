//! One stored state of an object: as a value, and encoded once for every answer and watcher.

use std::ops::Range;

use bytes::Bytes;
use serde_json::Value;

use super::history::Change;
use super::kinds::Kind;
use super::object;

/// An object as it was at one version.
#[derive(Debug)]
pub struct Stored {
    /// Where it is kept.
    pub key: String,
    /// The object without kind and apiVersion, which its table knows.
    pub value: Value,
    /// The version it was written under.
    pub version: u64,
    line: Bytes,
    body: Range<usize>,
    /// Where the fields after kind and apiVersion begin.
    fields: usize,
}

// === impl Stored ===

impl Stored {
    /// Encodes `value` as it stands after `change` under `version`.
    #[must_use]
    pub fn new(kind: &'static Kind, key: String, mut value: Value, version: u64, change: Change) -> Self {
        object::drop_type(&mut value);
        object::metadata_mut(&mut value).insert("resourceVersion".to_owned(), version.to_string().into());
        let mut line = String::with_capacity(1024);
        line.push_str(change.opening());
        let start = line.len();
        line.push_str(&format!(
            r#"{{"kind":"{}","apiVersion":"{}","#,
            kind.kind,
            kind.api_version()
        ));
        let fields = line.len();
        line.push_str(&value.to_string()[1..]);
        let end = line.len();
        line.push_str("}\n");
        Stored {
            key,
            value,
            version,
            line: line.into(),
            body: start..end,
            fields,
        }
    }

    /// The watch line of the change that made this state.
    #[must_use]
    pub fn line(&self) -> Bytes {
        self.line.clone()
    }

    /// The object in full.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.line.slice(self.body.clone())
    }

    /// Appends the object as an item of a list, which names the kind once for all.
    pub fn append_item(&self, list: &mut Vec<u8>) {
        list.push(b'{');
        list.extend_from_slice(&self.line[self.fields..self.body.end]);
    }
}
