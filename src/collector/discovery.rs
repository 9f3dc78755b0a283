//! Discovery of the served kinds.

use std::collections::{BTreeMap, BTreeSet};

use http::{StatusCode, header};
use kube::core::discovery::v2::{APIGroupDiscovery, APIGroupDiscoveryList};

use super::kinds::{Resource, Scope};
use crate::api::{self, ApiError, MetadataClient};

/// `Accept` header for aggregated discovery, which every API server has since Kubernetes 1.30.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Kinds that are not collected, as in kube-controller-manager: pkg/controller/garbagecollector/graph_builder.go
/// `DefaultIgnoredResources`.
const IGNORED: [(&str, &str); 2] = [("", "Event"), ("events.k8s.io", "Event")];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedKind {
    /// Its group, empty for the core group.
    pub group: String,
    pub kind: String,
    pub resource: Resource,
    /// Whether it can be listed, watched and deleted, and is not ignored.
    pub collected: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Discovered {
    /// All kinds with the verb `get`.
    pub served: Vec<ServedKind>,
    /// Versions that were not reported, by group. Nothing is concluded from kinds that these groups lack.
    pub failed: BTreeMap<String, Vec<String>>,
}

/// Why these versions of a group were not reported.
pub fn unreported(versions: &[String]) -> String {
    format!("its server does not answer for {}", versions.join(", "))
}

/// Queries the discovery endpoints; keeps the last documents with their ETags.
#[derive(Default)]
pub struct Discovery {
    documents: BTreeMap<&'static str, (Option<String>, Discovered)>,
}

// === impl Discovery ===

impl Discovery {
    pub async fn discover(&mut self, client: &MetadataClient) -> Result<Discovered, ApiError> {
        for path in ["/api", "/apis"] {
            let etag = self.documents.get(path).and_then(|(etag, _)| etag.as_deref());
            let answer = client.document(path, AGGREGATED, etag).await?;
            if answer.status() == StatusCode::NOT_MODIFIED {
                continue;
            }
            let text = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
            if !text(header::CONTENT_TYPE).is_some_and(|it| it.contains("as=APIGroupDiscoveryList")) {
                let why = "the API server has no aggregated discovery, which Kubernetes has since 1.30";
                return Err(ApiError::unreadable("GET", path, why));
            }
            let list: APIGroupDiscoveryList = api::read("GET", path, answer.body())?;
            let etag = text(header::ETAG).map(str::to_owned);
            self.documents.insert(path, (etag, preferred_kinds(&list.items)));
        }
        let mut all = Discovered::default();
        for (_, found) in self.documents.values() {
            all.served.extend_from_slice(&found.served);
            all.failed.extend(found.failed.clone());
        }
        Ok(all)
    }
}

/// For each kind, its group's preferred version, or else the first version that has the kind.
fn preferred_kinds(groups: &[APIGroupDiscovery]) -> Discovered {
    let mut discovered = Discovered::default();
    for group in groups {
        // The core group has none.
        let name = group.metadata.as_ref().and_then(|metadata| metadata.name.as_deref());
        let name = name.unwrap_or_default();
        let stale = group
            .versions
            .iter()
            .filter(|it| it.freshness.as_deref() == Some("Stale"));
        let versions: Vec<String> = stale.filter_map(|it| it.version.clone()).collect();
        if !versions.is_empty() {
            discovered.failed.insert(name.to_owned(), versions);
        }
        let mut kinds = BTreeSet::new();
        let versions = group.versions.iter();
        for (version, it) in versions.flat_map(|version| version.resources.iter().map(move |it| (version, it))) {
            let supports = |verb: &str| it.verbs.iter().any(|it| it == verb);
            let kind = it.response_kind.as_ref().and_then(|it| it.kind.as_deref());
            let Some(kind) = kind.filter(|kind| !kind.is_empty() && supports("get") && kinds.insert(*kind)) else {
                continue;
            };
            let is_ignored = IGNORED.contains(&(name, kind));
            discovered.served.push(ServedKind {
                group: name.to_owned(),
                kind: kind.to_owned(),
                resource: Resource {
                    version: version.version.clone().unwrap_or_default(),
                    plural: it.resource.clone().unwrap_or_default(),
                    scope: match it.scope.as_deref() {
                        Some("Namespaced") => Scope::Namespaced,
                        _ => Scope::Cluster,
                    },
                    short_names: it.short_names.clone(),
                },
                collected: supports("delete") && supports("list") && supports("watch") && !is_ignored,
            });
        }
    }
    discovered
}

/// URL path of a version of a group.
pub fn path_of(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("/api/{version}")
    } else {
        format!("/apis/{group}/{version}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kind_is_taken_from_the_preferred_version_and_a_stale_group_is_reported() {
        let resource = |kind: &str, short: &str, verbs: &[&str]| {
            json!({
                "resource": kind.to_lowercase() + "s", "responseKind": { "kind": kind }, "scope": "Namespaced",
                "shortNames": [short], "verbs": verbs,
            })
        };
        let all = ["get", "list", "watch", "delete"];
        let groups = json!({ "items": [{ "metadata": { "name": "apps" }, "versions": [
            { "version": "v1", "resources": [resource("Deployment", "deploy", &all)] },
            { "version": "v1beta1", "freshness": "Stale", "resources": [
                resource("Deployment", "old", &all), resource("Set", "set", &["get"]), resource("Review", "", &["create"]),
            ] },
        ] }] });
        let list: APIGroupDiscoveryList = serde_json::from_value(groups).unwrap();
        let discovered = preferred_kinds(&list.items);
        let served = |it: &ServedKind| {
            (
                it.kind.clone(),
                it.resource.version.clone(),
                it.resource.short_names[0].clone(),
                it.collected,
            )
        };
        let text = |it: &str| it.to_owned();
        assert_eq!(
            discovered.served.iter().map(served).collect::<Vec<_>>(),
            [
                (text("Deployment"), text("v1"), text("deploy"), true),
                (text("Set"), text("v1beta1"), text("set"), false),
            ]
        );
        assert_eq!(discovered.failed["apps"], ["v1beta1"]);
    }
}
