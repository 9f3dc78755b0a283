//! The leader of the controllers, from its Lease.

use anyhow::{Context, Result};
use http::StatusCode;
use jiff::Timestamp;

use crate::rest::Client;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager";

/// Content of the Lease `kube-system/kube-controller-manager`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Its holder: host name and a UUID. Empty if released.
    pub holder: String,
    /// When the holder last renewed it, by the holder's clock; every 2 s.
    pub renewed: Timestamp,
    /// Number of transitions.
    pub transitions: i64,
}

impl Leader {
    /// Reads the Lease; `None` if there never was a leader.
    pub async fn of(admin: &Client) -> Result<Option<Self>> {
        let answer = admin.get(LEASE).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let spec = &answer.ok()?["spec"];
        let renewed = spec["renewTime"]
            .as_str()
            .context("the Lease of the controller manager was never renewed")?;
        Ok(Some(Self {
            holder: spec["holderIdentity"].as_str().unwrap_or_default().to_owned(),
            renewed: renewed
                .parse()
                .with_context(|| format!("the Lease of the controller manager has renewTime {renewed:?}"))?,
            transitions: spec["leaseTransitions"].as_i64().unwrap_or_default(),
        }))
    }
}
