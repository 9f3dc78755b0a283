//! The kinds that are always there, one row each.

use super::{Dependents, Kind};

/// Every built-in kind.
pub static KINDS: &[Kind] = &[
    Kind {
        graceful: true,
        generation: true,
        answers_object: true,
        fields: Some(&["spec.nodeName"]),
        hollow: r#","spec":{"containers":null},"status":{}"#,
        ..Kind::core("pods", "Pod").with_status()
    },
    Kind {
        ..Kind::core("nodes", "Node").with_status().cluster()
    },
    Kind {
        answers_object: true,
        hollow: r#","spec":{},"status":{}"#,
        ..Kind::core("namespaces", "Namespace").with_status().cluster()
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
    Kind {
        ..Kind::core("configmaps", "ConfigMap")
    },
    Kind {
        ..Kind::core("secrets", "Secret")
    },
    Kind {
        answers_object: true,
        ..Kind::core("services", "Service").with_status()
    },
    Kind {
        answers_object: true,
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
