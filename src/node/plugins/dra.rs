//! A driver of dynamic resources (DRA): has it take back what it prepared for claims.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use tonic::Code;

use super::{
    call::Way,
    wire::k8s::io::kubelet::pkg::apis::dra::{
        v1::{Claim, NodeUnprepareResourcesRequest, dra_plugin_client::DraPluginClient as V1},
        v1beta1::dra_plugin_client::DraPluginClient as V1beta1,
    },
};
use crate::node::{
    effects::Effects,
    grpc::{Call, GrpcError},
};

/// How long the kubelet waits for an answer.
pub const DEADLINE: Duration = Duration::from_secs(45);

/// A plugin of a DRA driver that takes calls on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dra {
    driver: String,
    endpoint: PathBuf,
    service: Service,
    deadline: Duration,
}

/// A gRPC service by which a plugin takes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Of Kubernetes 1.34 and newer.
    V1,
    /// Of 1.32 and newer.
    V1beta1,
}

/// A ResourceClaim, as drivers know it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimRef {
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// Its name.
    pub name: String,
}

/// What a driver answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unprepared {
    /// Of each claim that was asked about, by its UID, whether it was taken back, or else why not.
    pub claims: BTreeMap<String, Result<(), String>>,
    /// UIDs that nobody asked about, for which the kubelet takes the whole answer to be wrong.
    pub unknown: Vec<String>,
}

// === impl Dra ===

impl Dra {
    /// The plugin of this driver that listens there.
    pub fn new(driver: impl Into<String>, endpoint: impl Into<PathBuf>, service: Service) -> Self {
        Self {
            driver: driver.into(),
            endpoint: endpoint.into(),
            service,
            deadline: DEADLINE,
        }
    }

    /// The same, with another time for each call.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Name of its driver.
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// The socket that takes its calls.
    pub fn endpoint(&self) -> &Path {
        &self.endpoint
    }

    /// The service that is called.
    pub fn service(&self) -> Service {
        self.service
    }

    /// Has the driver take back what it prepared for these claims. A claim of which it does not speak was not taken back.
    /// `None` in a dry run.
    ///
    /// # Errors
    /// When the call as a whole fails, is held back, or is not answered.
    pub async fn unprepare(&self, claims: &[ClaimRef], effects: &Effects) -> Result<Option<Unprepared>, GrpcError> {
        let target = claims.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let way = Way {
            call: Call::to_driver("NodeUnprepareResources", &self.driver, target),
            socket: &self.endpoint,
            deadline: self.deadline,
        };
        let request = NodeUnprepareResourcesRequest {
            claims: claims.iter().map(Claim::from).collect(),
        };
        let answer = way.change(request, effects, async |channel, request| match self.service {
            Service::V1 => V1::new(channel).node_unprepare_resources(request).await,
            Service::V1beta1 => V1beta1::new(channel).node_unprepare_resources(request).await,
        });
        let Some(answer) = answer.await.map_err(|error| self.asked_by(error))? else {
            return Ok(None);
        };
        let mut errors: BTreeMap<_, _> = answer.claims.into_iter().map(|(uid, it)| (uid, it.error)).collect();
        let claims = claims
            .iter()
            .map(|claim| {
                let result = match errors.remove(&claim.uid) {
                    Some(error) if error.is_empty() => Ok(()),
                    Some(error) => Err(error),
                    None => Err("the driver's answer does not mention it".to_owned()),
                };
                (claim.uid.clone(), result)
            })
            .collect();
        Ok(Some(Unprepared {
            claims,
            unknown: errors.into_keys().collect(),
        }))
    }

    /// A plugin that does not know the service that it was asked by often says nothing of that.
    fn asked_by(&self, error: GrpcError) -> GrpcError {
        match error {
            GrpcError::Failed { call, code, message } if code == Code::Unimplemented => GrpcError::Failed {
                call,
                code,
                message: format!("{message} (it was asked by {}, which it has registered)", self.service),
            },
            other => other,
        }
    }
}

// === impl Service ===

impl fmt::Display for Service {
    /// As plugins register it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "v1.DRAPlugin",
            Self::V1beta1 => "v1beta1.DRAPlugin",
        })
    }
}

impl Service {
    /// The service of this name, as plugins register it; `None` for one that is not known here.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "v1.DRAPlugin" => Some(Self::V1),
            "v1beta1.DRAPlugin" => Some(Self::V1beta1),
            _ => None,
        }
    }
}

// === impl ClaimRef ===

impl fmt::Display for ClaimRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({})", self.namespace, self.name, self.uid)
    }
}

impl From<&ClaimRef> for Claim {
    fn from(claim: &ClaimRef) -> Self {
        Self {
            namespace: claim.namespace.clone(),
            uid: claim.uid.clone(),
            name: claim.name.clone(),
        }
    }
}
