//! Discovery of the served kinds.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, stream};
use serde::{Deserialize, de::DeserializeOwned};

use super::kinds::{Resource, Scope};
use crate::api::{self, ApiError, Document, MetadataClient};

/// `Accept` header for aggregated discovery, and for API servers without it.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
const PLAIN: &str = "application/json";
/// Requests in flight to API servers without aggregated discovery.
const CONCURRENCY: usize = 8;
/// Kinds that are not collected, as in kube-controller-manager: pkg/controller/garbagecollector/graph_builder.go
/// `DefaultIgnoredResources`.
const IGNORED: [(&str, &str); 2] = [("", "Event"), ("events.k8s.io", "Event")];

/// A served kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedKind {
    /// Its group, empty for the core group.
    pub group: String,
    /// Its name.
    pub kind: String,
    /// Where it is served.
    pub resource: Resource,
    /// Short names, as `kubectl` takes them.
    pub short_names: Vec<String>,
    /// Whether it can be listed, watched and deleted, and is not ignored.
    pub collected: bool,
}

/// Result of a discovery.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Discovered {
    /// All kinds with the verb `get`.
    pub served: Vec<ServedKind>,
    /// Groups with versions that were not reported. Nothing is concluded from kinds that these lack.
    pub failed: BTreeMap<String, FailedGroup>,
}

/// A group with versions that were not reported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailedGroup {
    /// These versions.
    pub versions: Vec<String>,
    /// The reason.
    pub why: String,
}

/// Queries the discovery endpoints; keeps the last documents with their ETags.
#[derive(Default)]
pub struct Discovery {
    documents: BTreeMap<&'static str, (Option<String>, DiscoveryDocument)>,
}

/// A discovery document.
#[derive(Debug, Clone)]
enum DiscoveryDocument {
    /// Aggregated discovery: all groups with their resources.
    Groups(Vec<Group>),
    /// Groups with their versions only, the preferred version first.
    Versions(Vec<(String, Vec<String>)>),
}

#[derive(Debug, Clone)]
struct Group {
    name: String,
    versions: Vec<Version>,
    failed: Option<FailedGroup>,
}

#[derive(Debug, Clone)]
struct Version {
    name: String,
    resources: Vec<ResourceInfo>,
}

#[derive(Debug, Clone)]
struct ResourceInfo {
    plural: String,
    kind: String,
    scope: Scope,
    verbs: Vec<String>,
    short_names: Vec<String>,
}

// === impl Discovery ===

impl Discovery {
    /// Queries which kinds are served.
    pub async fn discover(&mut self, client: &MetadataClient) -> Result<Discovered, ApiError> {
        let mut groups = Vec::new();
        for path in ["/api", "/apis"] {
            match self.document(client, path).await? {
                DiscoveryDocument::Groups(found) => groups.extend(found),
                DiscoveryDocument::Versions(versions) => groups.extend(query_versions(client, versions).await),
            }
        }
        Ok(preferred_kinds(&groups))
    }

    async fn document(&mut self, client: &MetadataClient, path: &'static str) -> Result<DiscoveryDocument, ApiError> {
        let known = self.documents.get(path);
        let etag = known.and_then(|(etag, _)| etag.as_deref());
        let Some(document) = client.document(path, AGGREGATED, etag).await? else {
            let cached = known.map(|(_, document)| document.clone());
            return Ok(cached.unwrap_or(DiscoveryDocument::Versions(Vec::new())));
        };
        let parsed = parse(path, &document)?;
        self.documents.insert(path, (document.etag, parsed.clone()));
        Ok(parsed)
    }
}

/// Queries each version of each group.
async fn query_versions(client: &MetadataClient, groups: Vec<(String, Vec<String>)>) -> Vec<Group> {
    let queries = groups.into_iter().map(|(name, versions)| async move {
        let (mut found, mut failed) = (Vec::new(), None::<FailedGroup>);
        for version in versions {
            let path = path_of(&name, &version);
            let document = client.document(&path, PLAIN, None).await;
            match document.and_then(|document| read::<wire::Resources>(&path, document.as_ref())) {
                Ok(list) => found.push(Version {
                    name: version,
                    resources: list.resources(),
                }),
                Err(error) => {
                    let failed = failed.get_or_insert_default();
                    failed.versions.push(version);
                    failed.why = error.to_string();
                }
            }
        }
        Group {
            name,
            versions: found,
            failed,
        }
    });
    stream::iter(queries).buffered(CONCURRENCY).collect().await
}

fn parse(path: &'static str, document: &Document) -> Result<DiscoveryDocument, ApiError> {
    if document.content_type.contains("as=APIGroupDiscoveryList") {
        return read::<wire::AggregatedGroups>(path, Some(document))
            .map(|aggregated| DiscoveryDocument::Groups(aggregated.groups()));
    }
    Ok(DiscoveryDocument::Versions(if path == "/api" {
        vec![(
            String::new(),
            read::<wire::CoreVersions>(path, Some(document))?.versions,
        )]
    } else {
        read::<wire::Groups>(path, Some(document))?.versions()
    }))
}

fn read<T: DeserializeOwned>(path: &str, document: Option<&Document>) -> Result<T, ApiError> {
    let body = document.map(|document| &*document.body).unwrap_or_default();
    api::read("GET", path, body)
}

/// For each kind, its group's preferred version, or else the first version that has the kind.
fn preferred_kinds(groups: &[Group]) -> Discovered {
    let mut discovered = Discovered::default();
    for group in groups {
        if let Some(failed) = &group.failed {
            discovered.failed.insert(group.name.clone(), failed.clone());
        }
        let mut kinds = BTreeSet::new();
        for version in &group.versions {
            for resource in &version.resources {
                let supports = |verb: &str| resource.verbs.iter().any(|it| it == verb);
                if !supports("get") || !kinds.insert(&resource.kind) {
                    continue;
                }
                let is_ignored = IGNORED.contains(&(&group.name, &resource.kind));
                discovered.served.push(ServedKind {
                    group: group.name.clone(),
                    kind: resource.kind.clone(),
                    resource: Resource {
                        version: version.name.clone(),
                        plural: resource.plural.clone(),
                        scope: resource.scope,
                    },
                    short_names: resource.short_names.clone(),
                    collected: supports("delete") && supports("list") && supports("watch") && !is_ignored,
                });
            }
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

/// The documents as JSON.
mod wire {
    use super::{Deserialize, FailedGroup, Group as GroupInfo, ResourceInfo, Scope, Version as VersionInfo};

    #[derive(Deserialize)]
    pub struct AggregatedGroups {
        #[serde(default)]
        items: Vec<Group>,
    }

    #[derive(Deserialize)]
    struct Group {
        #[serde(default)]
        metadata: Metadata,
        #[serde(default)]
        versions: Vec<Version>,
    }

    #[derive(Default, Deserialize)]
    struct Metadata {
        #[serde(default)]
        name: String,
    }

    #[derive(Deserialize)]
    struct Version {
        version: String,
        #[serde(default)]
        freshness: String,
        #[serde(default)]
        resources: Vec<Resource>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Resource {
        resource: String,
        #[serde(default)]
        response_kind: ResponseKind,
        #[serde(default)]
        scope: String,
        #[serde(default)]
        verbs: Vec<String>,
        #[serde(default)]
        short_names: Vec<String>,
    }

    #[derive(Default, Deserialize)]
    struct ResponseKind {
        #[serde(default)]
        kind: String,
    }

    #[derive(Deserialize)]
    pub struct CoreVersions {
        pub versions: Vec<String>,
    }

    #[derive(Deserialize)]
    pub struct Groups {
        groups: Vec<PlainGroup>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct PlainGroup {
        name: String,
        versions: Vec<PlainVersion>,
        #[serde(default)]
        preferred_version: Option<PlainVersion>,
    }

    #[derive(Deserialize)]
    struct PlainVersion {
        version: String,
    }

    #[derive(Deserialize)]
    pub struct Resources {
        #[serde(default)]
        resources: Vec<PlainResource>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct PlainResource {
        name: String,
        kind: String,
        namespaced: bool,
        #[serde(default)]
        verbs: Vec<String>,
        #[serde(default)]
        short_names: Vec<String>,
    }

    impl AggregatedGroups {
        pub fn groups(self) -> Vec<GroupInfo> {
            self.items.into_iter().map(Group::read).collect()
        }
    }

    impl Group {
        fn read(self) -> GroupInfo {
            let stale: Vec<&str> = self
                .versions
                .iter()
                .filter(|it| it.freshness == "Stale")
                .map(|it| &*it.version)
                .collect();
            let failed = (!stale.is_empty()).then(|| FailedGroup {
                versions: stale.iter().map(|&version| version.to_owned()).collect(),
                why: format!("its server does not answer for {}", stale.join(", ")),
            });
            GroupInfo {
                name: self.metadata.name,
                failed,
                versions: self.versions.into_iter().map(Version::read).collect(),
            }
        }
    }

    impl Version {
        fn read(self) -> VersionInfo {
            let resources = self.resources.into_iter().map(|it| ResourceInfo {
                plural: it.resource,
                kind: it.response_kind.kind,
                scope: if it.scope == "Namespaced" {
                    Scope::Namespaced
                } else {
                    Scope::Cluster
                },
                verbs: it.verbs,
                short_names: it.short_names,
            });
            VersionInfo {
                name: self.version,
                resources: resources.filter(|it| !it.kind.is_empty()).collect(),
            }
        }
    }

    impl Groups {
        pub fn versions(self) -> Vec<(String, Vec<String>)> {
            let read = |group: PlainGroup| {
                let preferred = group.preferred_version.map(|it| it.version);
                let mut versions: Vec<String> = group.versions.into_iter().map(|it| it.version).collect();
                // The sort is stable.
                versions.sort_by_key(|version| Some(version) != preferred.as_ref());
                (group.name, versions)
            };
            self.groups.into_iter().map(read).collect()
        }
    }

    impl Resources {
        pub fn resources(self) -> Vec<ResourceInfo> {
            let resources = self.resources.into_iter().filter(|it| !it.name.contains('/'));
            resources
                .map(|it| ResourceInfo {
                    plural: it.name,
                    kind: it.kind,
                    scope: if it.namespaced {
                        Scope::Namespaced
                    } else {
                        Scope::Cluster
                    },
                    verbs: it.verbs,
                    short_names: it.short_names,
                })
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn short_names_are_read_from_both_discovery_formats() {
        let verbs = ["get", "list", "watch", "delete"];
        let aggregated = json!({ "items": [{ "metadata": { "name": "apps" }, "versions": [{ "version": "v1", "resources": [{
            "resource": "deployments", "responseKind": { "kind": "Deployment" }, "scope": "Namespaced",
            "shortNames": ["deploy"], "verbs": verbs,
        }] }] }] });
        let resources = json!({ "resources": [{
            "name": "deployments", "kind": "Deployment", "namespaced": true, "shortNames": ["deploy"], "verbs": verbs,
        }] });
        let aggregated: wire::AggregatedGroups = serde_json::from_value(aggregated).unwrap();
        let resources: wire::Resources = serde_json::from_value(resources).unwrap();
        let version = Version {
            name: "v1".to_owned(),
            resources: resources.resources(),
        };
        let group = Group {
            name: "apps".to_owned(),
            versions: vec![version],
            failed: None,
        };
        for groups in [aggregated.groups(), vec![group]] {
            let discovered = preferred_kinds(&groups);
            assert_eq!(discovered.served[0].short_names, ["deploy"]);
        }
    }
}
