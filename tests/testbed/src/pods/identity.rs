//! Identity of a pod.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;

/// Pods are identified by UID; name and namespace are for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// UID from the API server.
    pub uid: String,
    /// `default` if the object names none.
    pub namespace: String,
    /// Name within the namespace.
    pub name: String,
}

impl Identity {
    /// Reads it from a pod, which must have been through an API server.
    pub fn of(pod: &Pod) -> Result<Self> {
        let name = pod
            .metadata
            .name
            .clone()
            .context("read the pod: metadata.name is missing")?;
        let uid = pod
            .metadata
            .uid
            .clone()
            .with_context(|| format!("read pod {name}: metadata.uid is missing"))?;
        let namespace = pod.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
        Ok(Self { uid, namespace, name })
    }
}
