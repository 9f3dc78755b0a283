//! Leases in kube-system, as they are asked for and written here. No effect on anything of others, and so behind no gate.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use crate::api::{ApiError, Lane, MetadataClient, in_time, read};

/// A request that takes longer counts as failed: half of the deadline, so that another one can still come in time.
const PATIENCE: Duration = Duration::from_secs(5);
const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const JSON: &str = "application/json";

/// The Leases of kube-system.
#[derive(Clone, Copy)]
pub(super) struct Leases<'a>(pub &'a MetadataClient);

/// How exact an answer has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exact {
    /// As it is now.
    Now,
    /// As the server has it at hand: cheap, for many who only wait.
    Cached,
}

// === impl Leases ===

impl Leases<'_> {
    /// The Lease, or nothing if it is proven that there is none.
    pub async fn get(&self, name: &str, exact: Exact) -> Result<Option<Value>, ApiError> {
        let path = match exact {
            Exact::Now => format!("{PATH}/{name}"),
            Exact::Cached => format!("{PATH}/{name}?resourceVersion=0"),
        };
        match in_time(PATIENCE, "GET", &path, self.0.json(Lane::Turn, &path, JSON)).await {
            Ok(lease) => Ok(Some(lease)),
            Err(error) if is_absence(&error, name) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes one; returns its metadata.
    pub async fn create(&self, lease: &Value) -> Result<Value, ApiError> {
        self.send("POST", PATH, lease).await
    }

    /// Replaces the version that it names; returns its metadata.
    pub async fn replace(&self, name: &str, lease: &Value) -> Result<Value, ApiError> {
        self.send("PUT", &format!("{PATH}/{name}"), lease).await
    }

    async fn send(&self, verb: &'static str, path: &str, body: &Value) -> Result<Value, ApiError> {
        let body = Bytes::from(body.to_string());
        let sent = self.0.question(Lane::Turn, verb, path, JSON, body);
        read(verb, path, &in_time(PATIENCE, verb, path, sent).await?)
    }
}

fn is_absence(error: &ApiError, name: &str) -> bool {
    error.is_absence_of("coordination.k8s.io", "leases", name)
}
