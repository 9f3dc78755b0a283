//! One stored state of an object. A simulation keeps a million of them, so that it is text, and a value only on demand.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

use serde_json::Value;

use super::kinds::Kind;
use super::object;

/// How each object begins: with its metadata, the only part that some clients want.
const OPENING: &str = r#"{"metadata":"#;

/// An object as it was at one version.
#[derive(Debug)]
pub struct Stored {
    /// The version it was written under.
    pub version: u64,
    /// Its key, then the object as JSON without kind and apiVersion, which are known from the request.
    text: Box<str>,
    key_end: u32,
    metadata_end: u32,
}

/// A stored object that is found by its key.
#[derive(Debug)]
pub struct ByKey(pub Arc<Stored>);

impl Stored {
    /// Keeps `value` as it was written under `version`.
    pub fn new(key: &str, mut value: Value, version: u64) -> Self {
        object::drop_type(&mut value);
        let metadata = object::metadata_mut(&mut value);
        metadata.insert("resourceVersion".to_owned(), version.to_string().into());
        let metadata = Value::Object(std::mem::take(metadata));
        if let Value::Object(rest) = &mut value {
            rest.remove("metadata");
        }
        let (metadata, rest) = (metadata.to_string(), value.to_string());
        let mut text = String::with_capacity(key.len() + OPENING.len() + metadata.len() + rest.len());
        text.push_str(key);
        text.push_str(OPENING);
        text.push_str(&metadata);
        let metadata_end = place(&text);
        if rest.len() > 2 {
            text.push(',');
        }
        text.push_str(&rest[1..]);
        Stored {
            version,
            text: text.into(),
            key_end: place(key),
            metadata_end,
        }
    }

    /// Where it is kept.
    pub fn key(&self) -> &str {
        &self.text[..self.key_end as usize]
    }

    /// The object without kind and apiVersion.
    pub fn value(&self) -> Value {
        serde_json::from_str(self.json()).unwrap_or_default()
    }

    /// Its metadata as JSON.
    pub fn metadata(&self) -> &str {
        &self.text[self.key_end as usize + OPENING.len()..self.metadata_end as usize]
    }

    /// The same object under another version.
    pub fn at(&self, version: u64) -> Self {
        Stored::new(self.key(), self.value(), version)
    }

    /// Appends the object in full, as one of `kind`.
    pub fn append(&self, kind: &'static Kind, to: &mut Vec<u8>) {
        let opening = format!(r#"{{"kind":"{}","apiVersion":"{}","#, kind.kind, kind.api_version());
        to.extend_from_slice(opening.as_bytes());
        to.extend_from_slice(&self.json().as_bytes()[1..]);
    }

    /// Appends the object as an item of a list. If the kind is built in, the list names it once for all.
    pub fn append_item(&self, kind: &'static Kind, to: &mut Vec<u8>) {
        if kind.custom {
            self.append(kind, to);
        } else {
            to.extend_from_slice(self.json().as_bytes());
        }
    }

    fn json(&self) -> &str {
        &self.text[self.key_end as usize..]
    }
}

/// Where `text` ends. No request is as large as what does not fit.
fn place(text: &str) -> u32 {
    u32::try_from(text.len()).unwrap_or(u32::MAX)
}

impl Borrow<str> for ByKey {
    fn borrow(&self) -> &str {
        self.0.key()
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for ByKey {}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key().cmp(other.0.key())
    }
}
