//! Writes: what the rules decide, done to the store. Each call is one transaction.

mod delete;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::answer::Answer;
use super::authorizer::admission;
use super::definitions;
use super::error::ApiError;
use super::identity::User;
use super::kinds::{self, Kind};
use super::object;
use super::patch::Patch;
use super::route::Target;
use super::rules::create;
use super::rules::update::{self, By, Part};
use super::store::Store;
use super::stored::Stored;

pub use delete::{delete, end};

/// Who writes, and when.
#[derive(Debug)]
pub struct Writer<'a> {
    /// Who.
    pub user: &'a User,
    /// When.
    pub now: Timestamp,
}

/// Stores a new object.
pub fn create(store: &mut Store, writer: &Writer, target: &Target, body: Value) -> Result<Answer, ApiError> {
    let kind = target.kind;
    check_kind(kind, &body)?;
    if kind.namespaced {
        check_namespace(store, target, object::name(&body))?;
    }
    let new = create::prepare(kind, &target.namespace, body, writer.now)?;
    admission::create(store, writer.user, kind, &new)?;
    let key = kind.key(&target.namespace, object::name(&new));
    if let Some(old) = store.get(kind, &key) {
        let deleting = object::deletion_time(&old.value()).is_some();
        return Err(ApiError::already_exists(kind, object::name(&new), deleting));
    }
    if definitions::is_ending(store, kind) {
        let why = "create not allowed while custom resource definition is terminating";
        return Err(ApiError::forbidden(kind, object::name(&new), why));
    }
    let stored = put(store, writer, kind, &key, new);
    Ok(Answer::object(201, kind, &stored))
}

/// Replaces an object by another.
pub fn replace(store: &mut Store, writer: &Writer, target: &Target, mut body: Value) -> Result<Answer, ApiError> {
    let kind = target.kind;
    check_kind(kind, &body)?;
    match object::name(&body) {
        "" => {
            object::metadata_mut(&mut body).insert("name".to_owned(), target.name.as_str().into());
        }
        name if name != target.name => {
            let why = format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                target.name
            );
            return Err(ApiError::bad_request(why));
        }
        _ => {}
    }
    let Some(old) = store.get(kind, &target.key()).cloned() else {
        if kind.create_on_update && target.subresource.is_empty() {
            return create(store, writer, target, body);
        }
        return Err(ApiError::not_found(kind, &target.name));
    };
    write(store, writer, target, &old, body, By::Put)
}

/// Changes an object by a patch. A patch without a version applies to any version.
pub fn patch(store: &mut Store, writer: &Writer, target: &Target, patch: &Patch) -> Result<Answer, ApiError> {
    let kind = target.kind;
    let old = store
        .get(kind, &target.key())
        .cloned()
        .ok_or_else(|| ApiError::not_found(kind, &target.name))?;
    let new = patch.apply(kind, &old.value())?;
    write(store, writer, target, &old, new, By::Patch)
}

/// Stores an object past all rules, for tests of hostile ones.
pub fn insert_raw(store: &mut Store, object: Value, now: Timestamp) -> Result<(), ApiError> {
    let (version, name) = (object::text(&object, "/apiVersion"), object::text(&object, "/kind"));
    let kind = store
        .served
        .of_object(version, name)
        .ok_or_else(|| ApiError::bad_request(format!("no kind \"{name}\" is served in version \"{version}\"")))?;
    let object = create::raw(kind, object, now);
    let key = kind.key(object::namespace(&object), object::name(&object));
    let writer = Writer {
        user: &User::Admin,
        now,
    };
    put(store, &writer, kind, &key, object);
    Ok(())
}

fn write(
    store: &mut Store,
    writer: &Writer,
    target: &Target,
    old: &Arc<Stored>,
    new: Value,
    by: By,
) -> Result<Answer, ApiError> {
    let kind = target.kind;
    let part = if target.subresource == "status" {
        Part::Status
    } else {
        Part::Main
    };
    let was = old.value();
    admission::update(writer.user, kind, part, &was, &new)?;
    let new = update::prepare(kind, &was, new, part, by)?;
    let stored = if update::releases(&was, &new) {
        remove(store, writer, kind, old.key());
        Arc::new(Stored::new(old.key(), new, old.version))
    } else if new == was {
        Arc::clone(old)
    } else {
        put(store, writer, kind, old.key(), new)
    };
    Ok(Answer::object(200, kind, &stored))
}

/// Stores an object, and does what follows from that.
pub(super) fn put(store: &mut Store, writer: &Writer, kind: &'static Kind, key: &str, object: Value) -> Arc<Stored> {
    let stored = store.put(kind, key, object);
    definitions::stored(store, writer, kind, &stored);
    stored
}

/// Removes an object, and does what follows from that.
pub(super) fn remove(store: &mut Store, writer: &Writer, kind: &'static Kind, key: &str) -> Option<Arc<Stored>> {
    let last = store.remove(kind, key)?;
    definitions::removed(store, writer, kind, &last);
    Some(last)
}

fn check_kind(kind: &'static Kind, body: &Value) -> Result<(), ApiError> {
    let (version, name) = (object::text(body, "/apiVersion"), object::text(body, "/kind"));
    let fits = |said: &str, is: &str| said == is || (said.is_empty() && !kind.custom);
    let fits = fits(name, kind.kind) && fits(version, &kind.api_version());
    let shaped = body.is_object() && body.get("metadata").is_none_or(Value::is_object);
    match (fits, shaped) {
        (true, true) => Ok(()),
        (true, false) => Err(create::undecodable(kind, "it is not an object with metadata")),
        (false, _) => {
            let expected = format!("{}, Kind={}", kind.api_version(), kind.kind);
            let why = format!(
                "the API version in the data ({version}, Kind={name}) does not match the expected API version ({expected})"
            );
            Err(ApiError::bad_request(why))
        }
    }
}

fn check_namespace(store: &Store, target: &Target, name: &str) -> Result<(), ApiError> {
    let Some(namespaces) = kinds::find("", "v1", "namespaces") else {
        return Ok(());
    };
    let namespace = store.get(namespaces, &target.namespace);
    let namespace = namespace.ok_or_else(|| ApiError::not_found(namespaces, &target.namespace))?;
    if object::deletion_time(&namespace.value()).is_some() {
        return Err(ApiError::namespace_terminating(target.kind, name, &target.namespace));
    }
    Ok(())
}
