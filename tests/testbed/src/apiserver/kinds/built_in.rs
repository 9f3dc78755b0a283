//! The kinds that are always there, one row each.

use super::{Dependents, Kind};

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

/// Every built-in kind.
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
    Kind {
        answers_object: true,
        ..Kind::of("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim").with_status()
    },
    Kind {
        generation: true,
        ..Kind::of(
            "apiextensions.k8s.io",
            "v1",
            "customresourcedefinitions",
            "CustomResourceDefinition",
        )
        .with_status()
        .cluster()
    },
    Kind::of("apiregistration.k8s.io", "v1", "apiservices", "APIService")
        .with_status()
        .cluster(),
];

/// A built-in kind.
#[must_use]
pub fn find(group: &str, version: &str, resource: &str) -> Option<&'static Kind> {
    KINDS
        .iter()
        .find(|kind| kind.resource == resource && kind.group == group && kind.version == version)
}
