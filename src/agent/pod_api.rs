//! Implements the API that teardown needs.

use futures::future::{BoxFuture, FutureExt as _};
use serde_json::Value;

use crate::{
    api::{ApiClient, ApiError, DeleteAnswer},
    handover::guard::Guard,
    model::{
        failure::Reasoned as _,
        pod::{PodObject, PodRef, PodView},
    },
    node::plugins::ClaimRef,
    teardown::boundary::{ApiFailure, PodApi},
};

/// The API server of this node's cluster.
pub struct ClusterPods {
    /// Sends the requests.
    pub api: ApiClient,
    /// Decides what an absence proves.
    pub guard: Guard,
}

// === impl ClusterPods ===

impl PodApi for ClusterPods {
    fn pod<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Option<PodObject>, ApiFailure>> {
        async { Ok(self.api.pod(pod).await?) }.boxed()
    }

    fn each_pod<'a>(&'a self, each: &'a mut (dyn FnMut(PodView) + Send)) -> BoxFuture<'a, Result<(), ApiFailure>> {
        async {
            let mut each = |pod| -> Option<()> {
                each(pod);
                None
            };
            self.api.all_pods(&mut each).await?;
            Ok(())
        }
        .boxed()
    }

    fn reserved_for<'a>(&'a self, claim: &'a ClaimRef) -> BoxFuture<'a, Result<Vec<String>, ApiFailure>> {
        async {
            let (uid, pods) = self.api.reserved_for(&claim.namespace, &claim.name).await?;
            // A claim of this name with another UID proves nothing about the prepared one.
            Ok(if uid == claim.uid { pods } else { Vec::new() })
        }
        .boxed()
    }

    fn patch_status<'a>(&'a self, pod: &'a PodRef, patch: &'a Value) -> BoxFuture<'a, Result<(), ApiFailure>> {
        async { Ok(self.api.patch_pod_status(pod, patch).await?) }.boxed()
    }

    fn delete<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Vec<String>, ApiFailure>> {
        async {
            Ok(match self.api.delete_pod(pod).await? {
                DeleteAnswer::Deleted => Vec::new(),
                DeleteAnswer::WaitsForFinalizers(finalizers) => finalizers,
            })
        }
        .boxed()
    }

    fn is_deleted<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<bool, ApiFailure>> {
        async { Ok(self.guard.is_deleted(&self.api, pod).await?) }.boxed()
    }
}

// === impl ApiFailure ===

impl From<ApiError> for ApiFailure {
    fn from(error: ApiError) -> Self {
        Self {
            code: error.code(),
            cause: error.to_string(),
            reason: error.reason(),
            retry_after: error.retry_after(),
        }
    }
}
