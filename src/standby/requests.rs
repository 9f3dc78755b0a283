//! Leases in kube-system, as they are asked for and written here. No effect on anything of others, and so behind no gate.

use std::{future::Future, time::Duration};

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::api::{ApiError, Lane, MetadataClient};

/// A request that takes longer counts as failed: half of the deadline, so that another one can still come in time.
const PATIENCE: Duration = Duration::from_secs(5);
const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const JSON: &str = "application/json";
const ONLY_METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

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
        match in_time("GET", &path, self.0.document(&path, JSON, None)).await {
            Ok(document) => read("GET", &path, &document.map(|it| it.body).unwrap_or_default()).map(Some),
            Err(error) if is_absence(&error, name) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes one; returns its metadata.
    pub async fn create(&self, lease: &Value) -> Result<Value, ApiError> {
        self.send(Method::POST, "POST", PATH, lease).await
    }

    /// Replaces the version that it names; returns its metadata.
    pub async fn replace(&self, name: &str, lease: &Value) -> Result<Value, ApiError> {
        self.send(Method::PUT, "PUT", &format!("{PATH}/{name}"), lease).await
    }

    /// Deletes the one with this UID; `false` if it is gone already.
    pub async fn delete(&self, name: &str, uid: &str) -> Result<bool, ApiError> {
        let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": { "uid": uid } });
        let path = format!("{PATH}/{name}");
        match self.send(Method::DELETE, "DELETE", &path, &options).await {
            Ok(_) => Ok(true),
            Err(error) if is_absence(&error, name) || error.code() == Some(409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Metadata of those with this label.
    pub async fn labelled(&self, key: &str, value: &str) -> Result<Vec<Value>, ApiError> {
        let path = format!("{PATH}?labelSelector={}%3D{value}", key.replace('/', "%2F"));
        let document = in_time("LIST", &path, self.0.document(&path, ONLY_METADATA, None)).await?;
        let mut list: Value = read("LIST", &path, &document.map(|it| it.body).unwrap_or_default())?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    async fn send(&self, method: Method, verb: &'static str, path: &str, body: &Value) -> Result<Value, ApiError> {
        let body = Bytes::from(body.to_string());
        let sent = self.0.question(Lane::Question, method, verb, path, JSON, body);
        read(verb, path, &in_time(verb, path, sent).await?)
    }
}

fn is_absence(error: &ApiError, name: &str) -> bool {
    error.is_absence_of("coordination.k8s.io", "leases", name)
}

fn read(verb: &'static str, path: &str, body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::Unreadable {
        verb,
        path: path.to_owned(),
        cause: error.to_string(),
    })
}

async fn in_time<T>(
    verb: &'static str,
    path: &str,
    answer: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    // Boxed, since a request takes kilobytes while it goes on.
    timeout(PATIENCE, Box::pin(answer)).await.unwrap_or_else(|_| {
        Err(ApiError::Timeout {
            verb,
            path: path.to_owned(),
            after: PATIENCE,
        })
    })
}
