//! Requests for Leases in kube-system. They pass no gate, since they write only the collectors' Lease.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use crate::api::{ApiError, Lane, MetadataClient, read, with_timeout};

/// Limit of a request: half of the renew deadline, so that a second one fits in.
const TIMEOUT: Duration = Duration::from_secs(5);
const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const JSON: &str = "application/json";

/// The Leases of kube-system.
#[derive(Clone, Copy)]
pub(super) struct Leases<'a>(pub &'a MetadataClient);

/// How recent an answer has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freshness {
    /// The present state.
    Latest,
    /// From the server's cache: cheap, for waiting agents.
    Cached,
}

// === impl Leases ===

impl Leases<'_> {
    /// The Lease; `None` if its absence is proven.
    pub async fn get(&self, name: &str, freshness: Freshness) -> Result<Option<Value>, ApiError> {
        let path = match freshness {
            Freshness::Latest => format!("{PATH}/{name}"),
            Freshness::Cached => format!("{PATH}/{name}?resourceVersion=0"),
        };
        match with_timeout(TIMEOUT, "GET", &path, self.0.json(Lane::Election, &path, JSON)).await {
            Ok(lease) => Ok(Some(lease)),
            Err(error) if is_absence(&error, name) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates it; returns its metadata.
    pub async fn create(&self, lease: &Value) -> Result<Value, ApiError> {
        self.send("POST", PATH, lease).await
    }

    /// Replaces the version in its metadata; returns the new metadata.
    pub async fn replace(&self, name: &str, lease: &Value) -> Result<Value, ApiError> {
        self.send("PUT", &format!("{PATH}/{name}"), lease).await
    }

    async fn send(&self, verb: &'static str, path: &str, body: &Value) -> Result<Value, ApiError> {
        let body = Bytes::from(body.to_string());
        let sent = self.0.send_ungated(Lane::Election, verb, path, JSON, body);
        read(verb, path, &with_timeout(TIMEOUT, verb, path, sent).await?)
    }
}

fn is_absence(error: &ApiError, name: &str) -> bool {
    error.is_absence_of("coordination.k8s.io", "leases", name)
}
