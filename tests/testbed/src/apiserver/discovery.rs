//! What is served, in the plain form of discovery.

use serde_json::{Value, json};

use super::answer::Answer;
use super::error::ApiError;
use super::kinds::{KINDS, Kind};

const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];

/// `/version`.
#[must_use]
pub fn version() -> Value {
    json!({ "major": "1", "minor": "36", "gitVersion": "v1.36.3", "platform": "linux/amd64" })
}

/// `/api`, `/apis` and the lists below them.
///
/// # Errors
/// A group or version that is not served.
pub fn answer(path: &[String]) -> Result<Answer, ApiError> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let body = match path.as_slice() {
        ["api"] => json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] }),
        ["apis"] => json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups() }),
        ["apis", group, version] => resources(group, version)?,
        _ => resources("", "v1")?,
    };
    Ok(Answer::json(200, &body))
}

fn groups() -> Vec<Value> {
    let mut names: Vec<(&str, &str)> = KINDS.iter().map(|kind| (kind.group, kind.version)).collect();
    names.sort_unstable();
    names.dedup();
    let named = names.into_iter().filter(|(group, _)| !group.is_empty());
    named
        .map(|(group, version)| {
            let version = json!({ "groupVersion": format!("{group}/{version}"), "version": version });
            json!({ "name": group, "versions": [version], "preferredVersion": version })
        })
        .collect()
}

fn resources(group: &str, version: &str) -> Result<Value, ApiError> {
    let kinds: Vec<&Kind> = KINDS
        .iter()
        .filter(|kind| kind.group == group && kind.version == version)
        .collect();
    let first = kinds.first().ok_or_else(ApiError::no_such_path)?;
    let entries: Vec<Value> = kinds.iter().flat_map(|kind| entries(kind)).collect();
    let group_version = first.api_version();
    Ok(json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries }))
}

fn entries(kind: &Kind) -> Vec<Value> {
    let entry = |name: &str, singular: &str, verbs: &[&str]| json!({ "name": name, "singularName": singular, "namespaced": kind.namespaced, "kind": kind.kind, "verbs": verbs });
    let mut entries = vec![entry(kind.resource, &kind.kind.to_lowercase(), &VERBS)];
    if kind.status {
        entries.push(entry(&format!("{}/status", kind.resource), "", &STATUS_VERBS));
    }
    entries
}
