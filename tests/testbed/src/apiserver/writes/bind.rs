//! Binding a pod to a node, as a scheduler does.

use serde_json::{Value, json};

use super::{Writer, put};
use crate::apiserver::answer::Answer;
use crate::apiserver::error::ApiError;
use crate::apiserver::object;
use crate::apiserver::route::Target;
use crate::apiserver::store::Store;

/// Binds the pod to the node that `binding` names.
///
/// # Errors
/// There is no such pod, it is bound already, or no node is named.
pub fn bind(store: &mut Store, writer: &Writer, target: &Target, binding: &Value) -> Result<Answer, ApiError> {
    let kind = target.kind;
    let old = store
        .get(kind, &target.key())
        .cloned()
        .ok_or_else(|| ApiError::not_found(kind, &target.name))?;
    let node = object::text(binding, "/target/name");
    if node.is_empty() {
        return Err(ApiError::bad_request("target.name: Required value"));
    }
    let mut pod = old.value();
    let bound = object::node_name(&pod);
    if !bound.is_empty() {
        let why = format!("pod {} is already assigned to node \"{bound}\"", target.name);
        return Err(ApiError::conflict(kind, &target.name, &why));
    }
    object::child_mut(&mut pod, "spec").insert("nodeName".to_owned(), node.into());
    let scheduled =
        json!({ "type": "PodScheduled", "status": "True", "lastTransitionTime": object::stamp(writer.now) });
    object::set_condition(&mut pod, scheduled);
    put(store, writer, kind, old.key(), pod);
    Ok(Answer::success(201))
}
