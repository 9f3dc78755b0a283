//! The kinds that are served: everything in which they differ.
//!
//! `built_in` ones are always there, `custom` ones come and go with their definitions; `served` knows both.

pub mod built_in;
pub mod custom;
pub mod served;

pub use built_in::find;

/// Properties of one kind of object.
#[derive(Debug)]
pub struct Kind {
    /// API group, empty for the core group.
    pub group: &'static str,
    /// The version under which it is served.
    pub version: &'static str,
    /// Plural name, as in the path.
    pub resource: &'static str,
    /// Name of the kind, as in the body.
    pub kind: &'static str,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Whether a deletion waits for a grace period: pods only.
    pub graceful: bool,
    /// Whether it has the subresource `/status`.
    pub status: bool,
    /// Whether a change of the spec is counted in `metadata.generation`.
    pub generation: bool,
    /// Whether the answer to a DELETE that removed the object is the object, not a `Status`.
    pub answers_object: bool,
    /// Whether a PUT must name the resourceVersion that it replaces.
    pub versioned_update: bool,
    /// Whether a PUT of an absent object creates it.
    pub create_on_update: bool,
    /// Whether deletion policies apply, and which one is the default.
    pub dependents: Dependents,
    /// Field selectors besides name and namespace; `None` for kinds without a list of their own.
    pub fields: Option<&'static [&'static str]>,
    /// Whether a definition made it: then nothing is known of its lists, and an object that is sent has to name its kind.
    pub custom: bool,
    /// Fields that the encoder adds to an object with only metadata (seen in bookmarks).
    pub hollow: &'static str,
}

/// The verbs of every stored kind, as discovery lists them. `deletecollection`, which no client sends, is refused.
const VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

pub const STATUS_VERBS: &[&str] = &["get", "patch", "update"];

/// Default propagation policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependents {
    /// The kind takes no part in garbage collection.
    Unsupported,
    /// No finalizer: dependents are collected later.
    Background,
    /// The `orphan` finalizer.
    Orphan,
}

impl Kind {
    const fn of(group: &'static str, version: &'static str, resource: &'static str, kind: &'static str) -> Self {
        Kind {
            group,
            version,
            resource,
            kind,
            namespaced: true,
            graceful: false,
            status: false,
            generation: false,
            answers_object: false,
            versioned_update: false,
            create_on_update: false,
            dependents: Dependents::Background,
            fields: None,
            custom: false,
            hollow: "",
        }
    }

    const fn core(resource: &'static str, kind: &'static str) -> Self {
        Kind::of("", "v1", resource, kind)
    }

    const fn with_status(mut self) -> Self {
        self.status = true;
        self
    }

    const fn with_generation(mut self) -> Self {
        self.generation = true;
        self
    }

    const fn answering_object(mut self) -> Self {
        self.answers_object = true;
        self
    }

    const fn cluster(mut self) -> Self {
        self.namespaced = false;
        self
    }

    pub fn verbs(&self) -> &'static [&'static str] {
        // Clusters have no quota for these.
        if self.resource == "namespaces" && self.group.is_empty() {
            &["create", "delete", "get", "list", "patch", "update", "watch"]
        } else {
            VERBS
        }
    }

    /// As in `apiVersion`: `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// As messages name the resource: `pods`, `leases.coordination.k8s.io`.
    pub fn group_resource(&self) -> String {
        qualified(self.resource, self.group)
    }

    /// As messages name the kind: `Pod`, `Lease.coordination.k8s.io`.
    pub fn group_kind(&self) -> String {
        qualified(self.kind, self.group)
    }

    /// Key of an object of this kind: `namespace/name`, or `name`. Sorted as bytes, as in etcd.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        if self.namespaced {
            format!("{namespace}/{name}")
        } else {
            name.to_owned()
        }
    }
}

fn qualified(word: &str, group: &str) -> String {
    if group.is_empty() {
        word.to_owned()
    } else {
        format!("{word}.{group}")
    }
}
