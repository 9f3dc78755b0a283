//! Discovery, group by group or aggregated.

use serde_json::{Value, json};

use super::accept::DiscoveryForm;
use super::answer::Answer;
use super::error::ApiError;
use super::kinds::Kind;
use super::kinds::served::Served;

/// Resources that are not stored and can only be created: group version, resource, kind.
const CREATED_ONLY: &[(&str, &str, &str)] = &[(
    "authorization.k8s.io/v1",
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
)];

/// `/version`.
#[must_use]
pub fn version() -> Value {
    json!({ "major": "1", "minor": "37", "gitVersion": "v1.37.2", "platform": "linux/amd64" })
}

/// `/api`, `/apis` and the lists below them.
///
/// # Errors
/// A group or version that is not served, or a form that there is not.
pub fn answer(served: &Served, path: &[String], accept: &str) -> Result<Answer, ApiError> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let form = DiscoveryForm::parse(accept, path.len() == 1)?;
    let body = match (path.as_slice(), form) {
        (["api"], DiscoveryForm::Aggregated) => {
            return Ok(Answer::discovery(&all_of(&[aggregated(served, "", &["v1"])])));
        }
        (["apis"], DiscoveryForm::Aggregated) => {
            let groups = groups(served).into_iter();
            let groups: Vec<Value> = groups
                .map(|(group, versions)| aggregated(served, group, &versions))
                .collect();
            return Ok(Answer::discovery(&all_of(&groups)));
        }
        (["api"], _) => json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] }),
        (["apis"], _) => {
            let groups: Vec<Value> = groups(served)
                .iter()
                .map(|(name, versions)| group(name, versions))
                .collect();
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
        }
        (["apis", name], _) => {
            let groups = groups(served);
            let (name, versions) = groups
                .iter()
                .find(|(group, _)| group == name)
                .ok_or_else(ApiError::no_such_path)?;
            let mut group = group(name, versions);
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            group
        }
        (["apis", group, version], _) => resources(served, group, version)?,
        _ => resources(served, "", "v1")?,
    };
    Ok(Answer::json(200, &body))
}

/// The groups with their stored kinds, and those without any.
fn groups(served: &Served) -> Vec<(&str, Vec<&str>)> {
    let mut groups = served.groups();
    for (group, version) in CREATED_ONLY.iter().filter_map(|(home, _, _)| home.split_once('/')) {
        if !groups.iter().any(|(name, _)| *name == group) {
            groups.push((group, vec![version]));
        }
    }
    groups
}

fn group(name: &str, versions: &[&str]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({ "groupVersion": format!("{name}/{version}"), "version": version }))
        .collect();
    json!({ "name": name, "versions": versions, "preferredVersion": versions.first() })
}

fn created_only(group: &str, version: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let home = format!("{group}/{version}");
    let found = CREATED_ONLY.iter().filter(move |(version, _, _)| *version == home);
    found.map(|(_, resource, kind)| (*resource, *kind))
}

fn kinds<'a>(served: &'a Served, group: &'a str, version: &'a str) -> impl Iterator<Item = &'static Kind> + 'a {
    served
        .all()
        .filter(move |kind| kind.group == group && kind.version == version)
        .filter(|kind| served.is_discoverable(kind.group, kind.version))
}

// === group by group ===

fn resources(served: &Served, group: &str, version: &str) -> Result<Value, ApiError> {
    if served.is_away(group, version) {
        return Err(ApiError::away());
    }
    let mut entries: Vec<Value> = kinds(served, group, version).flat_map(entries).collect();
    entries.extend(created_only(group, version).map(|(resource, kind)| {
        json!({
            "name": resource, "singularName": kind.to_lowercase(), "namespaced": false, "kind": kind,
            "verbs": ["create"],
        })
    }));
    if entries.is_empty() {
        return Err(ApiError::no_such_path());
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    Ok(json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries }))
}

fn entries(kind: &'static Kind) -> Vec<Value> {
    let mut entries = vec![json!({
        "name": kind.resource, "singularName": kind.kind.to_lowercase(), "namespaced": kind.namespaced,
        "kind": kind.kind, "verbs": kind.verbs(),
    })];
    for part in kind.subresources() {
        let mut entry = json!({
            "name": format!("{}/{}", kind.resource, part.name), "singularName": "", "namespaced": kind.namespaced,
            "kind": part.kind, "verbs": part.verbs,
        });
        if !part.home.1.is_empty() {
            entry["group"] = part.home.0.into();
            entry["version"] = part.home.1.into();
        }
        entries.push(entry);
    }
    entries
}

// === all at once ===

fn all_of(groups: &[Value]) -> Value {
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": groups,
    })
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
            let mut resources: Vec<Value> = kinds(served, group, version).map(resource).collect();
            resources.extend(created_only(group, version).map(|(resource, kind)| {
                json!({
                    "resource": resource, "responseKind": { "group": "", "version": "", "kind": kind },
                    "scope": "Cluster", "singularResource": kind.to_lowercase(), "verbs": ["create"],
                })
            }));
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
    let response_kind = |name: &str, (group, version): (&str, &str)| match kind.custom {
        true => json!({ "group": kind.group, "version": kind.version, "kind": name }),
        false => json!({ "group": group, "version": version, "kind": name }),
    };
    let mut resource = json!({
        "resource": kind.resource, "responseKind": response_kind(kind.kind, ("", "")),
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.kind.to_lowercase(), "verbs": kind.verbs(),
    });
    let parts: Vec<Value> = kind
        .subresources()
        .iter()
        .map(|part| {
            json!({
                "subresource": part.name, "responseKind": response_kind(part.kind, part.home), "verbs": part.verbs,
            })
        })
        .collect();
    if !parts.is_empty() {
        resource["subresources"] = parts.into();
    }
    resource
}
