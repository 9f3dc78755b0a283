//! Aggregated discovery.

use serde_json::{Value, json};

use super::accept::wants_discovery;
use super::answer::Answer;
use super::error::ApiError;
use super::kinds::served::Served;
use super::kinds::{Kind, STATUS_VERBS};

/// `/version`.
pub fn version() -> Value {
    json!({ "major": "1", "minor": "37", "gitVersion": "v1.37.2", "platform": "linux/amd64" })
}

/// `/api` and `/apis`.
pub fn answer(served: &Served, path: &str, accept: &str) -> Result<Answer, ApiError> {
    if !wants_discovery(accept) {
        return Err(ApiError::not_acceptable());
    }
    let groups: Vec<Value> = match path {
        "api" => vec![aggregated(served, "", &["v1"])],
        _ => {
            let groups = served.groups().into_iter();
            let groups = groups.map(|(group, versions)| aggregated(served, group, &versions));
            groups.chain([reviews()]).collect()
        }
    };
    Ok(Answer::discovery(&json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": groups,
    })))
}

fn kinds<'a>(served: &'a Served, group: &'a str, version: &'a str) -> impl Iterator<Item = &'static Kind> + 'a {
    served
        .all()
        .filter(move |kind| kind.group == group && kind.version == version)
        .filter(|kind| served.is_discoverable(kind.group, kind.version))
}

fn aggregated(served: &Served, group: &str, versions: &[&str]) -> Value {
    let metadata = if group.is_empty() {
        json!({})
    } else {
        json!({ "name": group })
    };
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| {
            // The last known state of an unavailable server is still listed.
            let resources: Vec<Value> = kinds(served, group, version).map(resource).collect();
            let freshness = if served.is_away(group, version) {
                "Stale"
            } else {
                "Current"
            };
            let mut version = json!({ "version": version, "freshness": freshness });
            if !resources.is_empty() {
                version["resources"] = resources.into();
            }
            version
        })
        .collect();
    json!({ "metadata": metadata, "versions": versions })
}

fn resource(kind: &'static Kind) -> Value {
    // Built-in kinds leave it to the reader to take group and version from where they are named.
    let (group, version) = if kind.custom {
        (kind.group, kind.version)
    } else {
        ("", "")
    };
    let response_kind = json!({ "group": group, "version": version, "kind": kind.kind });
    let mut resource = json!({
        "resource": kind.resource, "responseKind": response_kind,
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.kind.to_lowercase(), "verbs": kind.verbs(),
    });
    if kind.status {
        resource["subresources"] =
            json!([{ "subresource": "status", "responseKind": response_kind, "verbs": STATUS_VERBS }]);
    }
    resource
}

/// A group whose one resource is not stored and can only be created.
fn reviews() -> Value {
    let resource = json!({
        "resource": "selfsubjectaccessreviews", "scope": "Cluster", "singularResource": "selfsubjectaccessreview",
        "responseKind": { "group": "", "version": "", "kind": "SelfSubjectAccessReview" }, "verbs": ["create"],
    });
    let version = json!({ "version": "v1", "freshness": "Current", "resources": [resource] });
    json!({ "metadata": { "name": "authorization.k8s.io" }, "versions": [version] })
}
