//! The kinds that are always there, one row each.

use super::{Dependents, Kind};

/// Every built-in kind.
pub static KINDS: &[Kind] = &[
    Kind {
        graceful: true,
        fields: Some(&["spec.nodeName"]),
        hollow: r#","spec":{"containers":null},"status":{}"#,
        ..Kind::core("pods", "Pod")
            .with_status()
            .with_generation()
            .answering_object()
    },
    Kind::core("nodes", "Node").with_status().cluster(),
    Kind {
        hollow: r#","spec":{},"status":{}"#,
        ..Kind::core("namespaces", "Namespace")
            .with_status()
            .cluster()
            .answering_object()
    },
    Kind {
        create_on_update: true,
        dependents: Dependents::Unsupported,
        fields: Some(&[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "reason",
            "type",
        ]),
        ..Kind::core("events", "Event")
    },
    Kind::core("configmaps", "ConfigMap"),
    Kind::core("secrets", "Secret"),
    Kind::core("services", "Service").with_status().answering_object(),
    Kind::core("serviceaccounts", "ServiceAccount").answering_object(),
    Kind::core("persistentvolumes", "PersistentVolume")
        .with_status()
        .cluster()
        .answering_object(),
    Kind::core("persistentvolumeclaims", "PersistentVolumeClaim")
        .with_status()
        .answering_object(),
    Kind {
        dependents: Dependents::Orphan,
        ..Kind::core("replicationcontrollers", "ReplicationController")
            .with_status()
            .with_generation()
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
        ..Kind::of("events.k8s.io", "v1", "events", "Event")
    },
    Kind::of("apps", "v1", "daemonsets", "DaemonSet")
        .with_status()
        .with_generation(),
    Kind::of("apps", "v1", "deployments", "Deployment")
        .with_status()
        .with_generation(),
    Kind::of("apps", "v1", "replicasets", "ReplicaSet")
        .with_status()
        .with_generation(),
    Kind::of("apps", "v1", "statefulsets", "StatefulSet")
        .with_status()
        .with_generation(),
    Kind {
        dependents: Dependents::Orphan,
        ..Kind::of("batch", "v1", "jobs", "Job").with_status().with_generation()
    },
    Kind::of("batch", "v1", "cronjobs", "CronJob")
        .with_status()
        .with_generation(),
    Kind::of("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment")
        .with_status()
        .cluster()
        .answering_object(),
    Kind::of("storage.k8s.io", "v1", "csinodes", "CSINode")
        .cluster()
        .answering_object(),
    Kind::of("storage.k8s.io", "v1", "csidrivers", "CSIDriver")
        .cluster()
        .answering_object(),
    Kind::of("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
        .with_status()
        .answering_object(),
    Kind::of(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
    )
    .with_status()
    .with_generation()
    .cluster(),
    Kind::of("apiregistration.k8s.io", "v1", "apiservices", "APIService")
        .with_status()
        .cluster(),
];

/// A built-in kind.
pub fn find(group: &str, version: &str, resource: &str) -> Option<&'static Kind> {
    KINDS
        .iter()
        .find(|kind| kind.resource == resource && kind.group == group && kind.version == version)
}
