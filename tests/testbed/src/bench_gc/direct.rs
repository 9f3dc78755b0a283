//! Deletion by a plain client that knows what to delete: the baseline of the collectors.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{Method, StatusCode};
use serde::Serialize;

use super::objects::Family;
use crate::http2::{Http2, PROTOBUF};

const OPTIONS: &[u8] = br#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}"#;

/// Settings of a plain client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pace {
    /// Requests in flight.
    pub in_flight: usize,
    /// Number of connections.
    pub connections: usize,
}

/// Deletes all dependents by name.
pub async fn delete(client: &Http2, family: &Family, in_flight: usize) -> Result<()> {
    let answers = stream::iter(0..family.dependents).map(|index| {
        let path = family.path(index);
        async move {
            let options = Bytes::from_static(OPTIONS);
            let answer = client.send(Method::DELETE, &path, PROTOBUF, options).await;
            let answer = answer.with_context(|| format!("delete {path}"))?;
            ensure!(answer.status == StatusCode::OK, "delete {path}: {}", answer.status);
            Ok(())
        }
    });
    answers.buffer_unordered(in_flight).try_collect().await
}
