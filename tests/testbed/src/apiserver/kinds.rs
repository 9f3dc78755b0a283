//! The kinds that are served, one row each: everything in which they differ.

/// What is particular about one kind of object.
#[derive(Debug)]
pub struct Kind {
    /// API group, empty for the core group.
    pub group: &'static str,
    /// The one version that is served.
    pub version: &'static str,
    /// Plural name, as in the path.
    pub resource: &'static str,
    /// Name of the kind, as in the body.
    pub kind: &'static str,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Whether a deletion waits for a grace period: pods only.
    pub graceful: bool,
    /// Whether `/status` is a resource of its own.
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
    /// Field selectors beside name and namespace; `None` for kinds that have no list of their own.
    pub fields: Option<&'static [&'static str]>,
    /// The fields of an object beside its metadata; any other is dropped with a warning.
    pub body: &'static [&'static str],
    /// What the encoder adds to an object that has nothing but metadata (seen in bookmarks).
    pub hollow: &'static str,
}

/// What a deletion without a policy does about an object's dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependents {
    /// The kind takes no part in garbage collection.
    Unsupported,
    /// No finalizer: dependents are collected later.
    Background,
    /// The `orphan` finalizer.
    Orphan,
}

const POD_FIELDS: &[&str] = &[
    "spec.nodeName",
    "spec.host",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.podIPs",
    "status.nominatedNodeName",
];

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

const EVENT_BODY: &[&str] = &[
    "action",
    "count",
    "deprecatedCount",
    "deprecatedFirstTimestamp",
    "deprecatedLastTimestamp",
    "deprecatedSource",
    "eventTime",
    "firstTimestamp",
    "involvedObject",
    "lastTimestamp",
    "message",
    "note",
    "reason",
    "regarding",
    "related",
    "reportingComponent",
    "reportingController",
    "reportingInstance",
    "series",
    "source",
    "type",
];

/// Every kind that is served.
pub static KINDS: &[Kind] = &[
    Kind {
        graceful: true,
        generation: true,
        answers_object: true,
        fields: Some(POD_FIELDS),
        hollow: r#","spec":{"containers":null},"status":{}"#,
        ..Kind::core("pods", "Pod").with_status()
    },
    Kind {
        fields: Some(&["spec.unschedulable"]),
        ..Kind::core("nodes", "Node").with_status().cluster()
    },
    Kind {
        answers_object: true,
        fields: Some(&["status.phase"]),
        hollow: r#","spec":{},"status":{}"#,
        ..Kind::core("namespaces", "Namespace").with_status().cluster()
    },
    Kind {
        create_on_update: true,
        dependents: Dependents::Unsupported,
        body: EVENT_BODY,
        fields: Some(EVENT_FIELDS),
        ..Kind::core("events", "Event")
    },
    Kind {
        body: &["data", "binaryData", "immutable"],
        ..Kind::core("configmaps", "ConfigMap")
    },
    Kind {
        fields: Some(&["type"]),
        body: &["data", "stringData", "type", "immutable"],
        ..Kind::core("secrets", "Secret")
    },
    Kind {
        answers_object: true,
        fields: Some(&["spec.clusterIP", "spec.type"]),
        ..Kind::core("services", "Service").with_status()
    },
    Kind {
        answers_object: true,
        body: &["secrets", "imagePullSecrets", "automountServiceAccountToken"],
        ..Kind::core("serviceaccounts", "ServiceAccount")
    },
    Kind {
        answers_object: true,
        ..Kind::core("persistentvolumes", "PersistentVolume")
            .with_status()
            .cluster()
    },
    Kind {
        answers_object: true,
        ..Kind::core("persistentvolumeclaims", "PersistentVolumeClaim").with_status()
    },
    Kind {
        generation: true,
        dependents: Dependents::Orphan,
        fields: Some(&["status.replicas"]),
        ..Kind::core("replicationcontrollers", "ReplicationController").with_status()
    },
    Kind {
        versioned_update: true,
        create_on_update: true,
        hollow: r#","spec":{}"#,
        ..Kind::of("coordination.k8s.io", "v1", "leases", "Lease")
    },
    Kind {
        create_on_update: true,
        dependents: Dependents::Unsupported,
        body: EVENT_BODY,
        ..Kind::of("events.k8s.io", "v1", "events", "Event")
    },
    Kind {
        generation: true,
        ..Kind::of("apps", "v1", "daemonsets", "DaemonSet").with_status()
    },
    Kind {
        generation: true,
        ..Kind::of("apps", "v1", "deployments", "Deployment").with_status()
    },
    Kind {
        generation: true,
        ..Kind::of("apps", "v1", "replicasets", "ReplicaSet").with_status()
    },
    Kind {
        generation: true,
        ..Kind::of("apps", "v1", "statefulsets", "StatefulSet").with_status()
    },
    Kind {
        generation: true,
        dependents: Dependents::Orphan,
        fields: Some(&["status.successful"]),
        ..Kind::of("batch", "v1", "jobs", "Job").with_status()
    },
    Kind {
        generation: true,
        ..Kind::of("batch", "v1", "cronjobs", "CronJob").with_status()
    },
    Kind {
        answers_object: true,
        ..Kind::of("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment")
            .with_status()
            .cluster()
    },
    Kind {
        answers_object: true,
        ..Kind::of("storage.k8s.io", "v1", "csinodes", "CSINode").cluster()
    },
    Kind {
        answers_object: true,
        ..Kind::of("storage.k8s.io", "v1", "csidrivers", "CSIDriver").cluster()
    },
];

/// The kind behind a path, if it is served.
#[must_use]
pub fn find(group: &str, version: &str, resource: &str) -> Option<&'static Kind> {
    KINDS
        .iter()
        .find(|kind| kind.resource == resource && kind.group == group && kind.version == version)
}

/// The kind that an object says it is, if it is served.
#[must_use]
pub fn of_object(api_version: &str, kind: &str) -> Option<&'static Kind> {
    KINDS
        .iter()
        .find(|row| row.kind == kind && row.api_version() == api_version)
}

// === impl Kind ===

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
            body: &["spec", "status"],
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

    const fn cluster(mut self) -> Self {
        self.namespaced = false;
        self
    }

    /// As in `apiVersion`: `v1`, `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// As messages name the resource: `pods`, `leases.coordination.k8s.io`.
    #[must_use]
    pub fn group_resource(&self) -> String {
        qualified(self.resource, self.group)
    }

    /// As messages name the kind: `Pod`, `Lease.coordination.k8s.io`.
    #[must_use]
    pub fn group_kind(&self) -> String {
        qualified(self.kind, self.group)
    }

    /// Where an object of this kind is kept: `namespace/name`, or `name`. Sorted as bytes, as etcd does.
    #[must_use]
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
