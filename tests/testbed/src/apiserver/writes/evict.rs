//! Evicting a pod: a condition that says so, then a deletion by the usual rules.

use serde_json::{Value, json};

use super::{Writer, delete, put};
use crate::apiserver::answer::Answer;
use crate::apiserver::authorizer::admission;
use crate::apiserver::deletion::options::DeleteOptions;
use crate::apiserver::error::ApiError;
use crate::apiserver::object;
use crate::apiserver::query::Query;
use crate::apiserver::route::Target;
use crate::apiserver::store::Store;

/// Evicts the pod; disruption budgets are not kept here.
///
/// # Errors
/// There is no such pod, or it may not be deleted.
pub fn evict(store: &mut Store, writer: &Writer, target: &Target, eviction: &Value) -> Result<Answer, ApiError> {
    let kind = target.kind;
    let named = object::name(eviction);
    if !named.is_empty() && named != target.name {
        return Err(ApiError::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    let old = store
        .get(kind, &target.key())
        .cloned()
        .ok_or_else(|| ApiError::not_found(kind, &target.name))?;
    let body = eviction.get("deleteOptions").map(Value::to_string).unwrap_or_default();
    let options = DeleteOptions::parse(body.as_bytes(), &Query::default())?;
    let mut pod = old.value();
    options.check(kind, &pod)?;
    admission::delete(writer.user, kind, &pod)?;
    object::set_condition(
        &mut pod,
        json!({
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastTransitionTime": object::stamp(writer.now),
        }),
    );
    let stored = put(store, writer, kind, old.key(), pod);
    let version = options.version.as_ref().map(|_| stored.version.to_string());
    delete(store, writer, target, &DeleteOptions { version, ..options })?;
    Ok(Answer::success(201))
}
