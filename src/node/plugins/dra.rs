//! A DRA driver: has it unprepare ResourceClaims.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use tonic::Code;

use super::{
    call::CallRequest,
    wire::k8s::io::kubelet::pkg::apis::dra::{
        v1::{Claim, NodeUnprepareResourcesRequest, dra_plugin_client::DraPluginClient},
        v1beta1::dra_plugin_client::DraPluginClient as BetaClient,
    },
};
use crate::node::{
    effects::Effects,
    grpc::{Call, CallFailure, GrpcError},
};

/// The kubelet's timeout.
pub const DEADLINE: Duration = Duration::from_secs(45);

/// A plugin of a DRA driver on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dra {
    driver: String,
    /// Path of the plugin's socket.
    pub endpoint: PathBuf,
    /// The service that is called.
    pub service: &'static str,
}

/// The gRPC services of plugins that this agent can call, by the names that plugins register.
pub(super) const SERVICES: [&str; 2] = [V1, V1BETA1];
/// Since Kubernetes 1.34.
const V1: &str = "v1.DRAPlugin";
/// Since Kubernetes 1.32.
const V1BETA1: &str = "v1beta1.DRAPlugin";

/// A ResourceClaim as drivers identify it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimRef {
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// Its name.
    pub name: String,
}

/// A driver's answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unprepared {
    /// The requested claims that are not unprepared, by UID, with the driver's error.
    pub failed: BTreeMap<String, String>,
    /// UIDs that were not requested. The kubelet rejects the whole answer because of them.
    pub unknown: Vec<String>,
}

// === impl Dra ===

impl Dra {
    /// The plugin of this driver with this socket.
    pub fn new(driver: impl Into<String>, endpoint: impl Into<PathBuf>, service: &'static str) -> Self {
        Self {
            driver: driver.into(),
            endpoint: endpoint.into(),
            service,
        }
    }

    /// Calls `NodeUnprepareResources` for these claims. A claim that the answer lacks counts as failed.
    ///
    /// # Errors
    /// When the call as a whole fails, is blocked, or is not answered.
    pub async fn unprepare(&self, claims: &[ClaimRef], effects: &Effects) -> Result<Unprepared, GrpcError> {
        let target = claims.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let call = CallRequest {
            call: Call::to_driver("NodeUnprepareResources", &self.driver, target),
            socket: &self.endpoint,
            deadline: DEADLINE,
        };
        let wire = |ClaimRef { namespace, uid, name }| Claim { namespace, uid, name };
        let request = NodeUnprepareResourcesRequest {
            claims: claims.iter().cloned().map(wire).collect(),
        };
        let answer = call.send(Some(effects), async |channel| match self.service {
            V1BETA1 => BetaClient::new(channel).node_unprepare_resources(request).await,
            _ => DraPluginClient::new(channel).node_unprepare_resources(request).await,
        });
        let answer = answer.await.map_err(|error| self.with_service_hint(error))?;
        let mut errors: BTreeMap<_, _> = answer.claims.into_iter().map(|(uid, it)| (uid, it.error)).collect();
        let failed = claims.iter().filter_map(|claim| {
            let error = errors.remove(&claim.uid);
            let error = error.unwrap_or_else(|| "the driver's answer lacks it".to_owned());
            (!error.is_empty()).then(|| (claim.uid.clone(), error))
        });
        Ok(Unprepared {
            failed: failed.collect(),
            unknown: errors.into_keys().collect(),
        })
    }

    /// Adds the service's name to an error: plugins often do not mention it.
    fn with_service_hint(&self, mut error: GrpcError) -> GrpcError {
        if let CallFailure::Failed { code, message } = &mut error.failure
            && *code == Code::Unimplemented
        {
            let service = self.service;
            *message = format!("{message} (the call was of {service}, which the driver has registered)");
        }
        error
    }
}

// === impl ClaimRef ===

impl fmt::Display for ClaimRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({})", self.namespace, self.name, self.uid)
    }
}
