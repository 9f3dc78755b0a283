//! Deleting an object.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Writer, put, remove};
use crate::apiserver::answer::Answer;
use crate::apiserver::authorizer::admission;
use crate::apiserver::definitions;
use crate::apiserver::deletion::options::DeleteOptions;
use crate::apiserver::deletion::{self, Outcome};
use crate::apiserver::error::ApiError;
use crate::apiserver::kinds::Kind;
use crate::apiserver::object;
use crate::apiserver::route::Target;
use crate::apiserver::store::Store;
use crate::apiserver::stored::Stored;

/// How an object stands after its DELETE.
enum Deleted {
    Held(Arc<Stored>),
    Removed(Arc<Stored>),
}

/// Deletes one object, or begins to.
pub fn delete(
    store: &mut Store,
    writer: &Writer,
    target: &Target,
    options: &DeleteOptions,
) -> Result<Answer, ApiError> {
    let old = store.get(target.kind, &target.key()).cloned();
    let old = old.ok_or_else(|| ApiError::not_found(target.kind, &target.name))?;
    Ok(match delete_stored(store, writer, target.kind, &old, options)? {
        Deleted::Removed(last) => Answer::removed(target.kind, &last),
        Deleted::Held(object) => {
            let code = if options.orphan_dependents == Some(false) {
                202
            } else {
                200
            };
            Answer::object(code, target.kind, &object)
        }
    })
}

/// Deletes an object that a controller decided about, or begins to.
pub fn end(store: &mut Store, writer: &Writer, kind: &'static Kind, object: &Arc<Stored>) {
    // Without preconditions there is nothing that could refuse it but a right, and controllers have it.
    let _ = delete_stored(store, writer, kind, object, &DeleteOptions::default());
}

fn delete_stored(
    store: &mut Store,
    writer: &Writer,
    kind: &'static Kind,
    old: &Arc<Stored>,
    options: &DeleteOptions,
) -> Result<Deleted, ApiError> {
    let stored = old.value();
    options.check(kind, &stored)?;
    admission::delete(writer.user, kind, &stored)?;
    if object::deletion_time(&stored).is_none() && definitions::is_definition(kind) {
        let ending = definitions::ending(stored, writer);
        return Ok(Deleted::Held(put(store, writer, kind, old.key(), ending)));
    }
    if kind.kind == "Namespace" && !kind.custom {
        return Ok(Deleted::Held(close_namespace(store, writer, kind, old, stored)));
    }
    match deletion::decide(kind, &stored, options, writer.now) {
        Outcome::Unchanged => Ok(Deleted::Held(Arc::clone(old))),
        Outcome::Held(object) => Ok(Deleted::Held(put(store, writer, kind, old.key(), object))),
        Outcome::Removed { last } => {
            let last = match last {
                Some(last) => put(store, writer, kind, old.key(), last),
                None => Arc::clone(old),
            };
            Ok(Deleted::Removed(remove(store, writer, kind, old.key()).unwrap_or(last)))
        }
    }
}

/// A namespace only begins to go: its content and its own finalizer are the controller's to remove.
fn close_namespace(
    store: &mut Store,
    writer: &Writer,
    kind: &'static Kind,
    old: &Arc<Stored>,
    mut namespace: Value,
) -> Arc<Stored> {
    if object::deletion_time(&namespace).is_some() {
        return Arc::clone(old);
    }
    let at = object::stamp(writer.now);
    object::metadata_mut(&mut namespace).insert("deletionTimestamp".to_owned(), at.into());
    object::child_mut(&mut namespace, "status").insert("phase".to_owned(), json!("Terminating"));
    put(store, writer, kind, old.key(), namespace)
}
