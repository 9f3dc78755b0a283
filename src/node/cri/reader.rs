//! The reads of a container runtime alone, for code that must not change anything.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Cri,
    client::ContainerEvents,
    types::{Container, RuntimePod},
};
use crate::node::grpc::GrpcError;

/// The reads of a container runtime. It has no call that changes anything.
#[derive(Debug, Clone)]
pub struct CriReader(Cri);

// === impl CriReader ===

impl CriReader {
    /// The reads of this runtime.
    pub fn new(cri: Cri) -> Self {
        Self(cri)
    }

    /// All pods, by UID, as the two lists show them. See [`Cri::pod_brief`].
    ///
    /// # Errors
    /// When either list fails, or is too large.
    pub async fn all_brief(&self) -> Result<BTreeMap<String, RuntimePod>, GrpcError> {
        self.0.all_brief().await
    }

    /// One pod as the two lists show it. See [`Cri::pod_brief`].
    ///
    /// # Errors
    /// When either list fails.
    pub async fn pod_brief(&self, uid: &str) -> Result<RuntimePod, GrpcError> {
        self.0.pod_brief(uid).await
    }

    /// A listed container with its status. See [`Cri::with_status`].
    ///
    /// # Errors
    /// When the call fails.
    pub async fn with_status(
        &self,
        listed: &Container,
        status_timeout: Duration,
    ) -> Result<Option<Container>, GrpcError> {
        self.0.with_status(listed, status_timeout).await
    }

    /// One item for each change of a container. See [`Cri::container_events`].
    pub fn container_events(&self) -> ContainerEvents {
        self.0.container_events()
    }
}
