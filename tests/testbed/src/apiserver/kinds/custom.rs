//! Kinds that a definition makes.

use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::Kind;
use crate::apiserver::object::text;

/// All custom kinds since the start. A kind has many users, so it is shared and never freed. A definition that is created again
/// gets the same kind, so that only a new one takes memory.
static KNOWN: Mutex<Vec<&'static Kind>> = Mutex::new(Vec::new());

/// The kinds that a definition makes, one for each of its versions, and whether that version is served.
pub fn made_by(definition: &Value) -> Vec<(&'static Kind, bool)> {
    let versions = definition.pointer("/spec/versions").and_then(Value::as_array);
    versions
        .into_iter()
        .flatten()
        .map(|version| {
            let wanted = Wanted {
                group: text(definition, "/spec/group"),
                version: text(version, "/name"),
                resource: text(definition, "/spec/names/plural"),
                kind: text(definition, "/spec/names/kind"),
                namespaced: text(definition, "/spec/scope") == "Namespaced",
                status: version.pointer("/subresources/status").is_some(),
            };
            (wanted.kind(), version["served"] == true)
        })
        .collect()
}

/// What distinguishes custom kinds.
#[derive(PartialEq)]
struct Wanted<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a str,
    kind: &'a str,
    namespaced: bool,
    status: bool,
}

impl<'a> Wanted<'a> {
    fn of(kind: &'a Kind) -> Self {
        Wanted {
            group: kind.group,
            version: kind.version,
            resource: kind.resource,
            kind: kind.kind,
            namespaced: kind.namespaced,
            status: kind.status,
        }
    }

    fn kind(&self) -> &'static Kind {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kind) = known.iter().find(|kind| Wanted::of(kind) == *self) {
            return kind;
        }
        let keep = |word: &str| -> &'static str { String::leak(word.to_owned()) };
        let kind = Kind {
            namespaced: self.namespaced,
            status: self.status,
            generation: true,
            versioned_update: true,
            custom: true,
            ..Kind::of(
                keep(self.group),
                keep(self.version),
                keep(self.resource),
                keep(self.kind),
            )
        };
        let kind = Box::leak(Box::new(kind));
        known.push(kind);
        kind
    }
}
