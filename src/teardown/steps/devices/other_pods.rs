//! Queries API server and runtime for other pods of this node that may use a claim.

use futures::future::join_all;

use super::decide::OtherPods;
use crate::{
    model::{failure::Failure, trace::Step},
    node::dra_checkpoint::PreparedClaim,
    teardown::{context::Context, evidence},
};

/// All pods that may use one of these claims, except the pod `uid`.
pub async fn find(context: &Context, uid: &str, claims: &[PreparedClaim]) -> Result<OtherPods, Vec<Failure>> {
    let reserved = claims
        .iter()
        .map(async |claim| -> Result<Vec<(String, String)>, Vec<Failure>> {
            match context.api.reserved_for(&claim.claim).await {
                Ok(by) => Ok(by.into_iter().map(|by| (claim.claim.uid.clone(), by)).collect()),
                // Deleted, or named by no pod of this node: then the node may not read it.
                Err(error) if matches!(error.code, Some(403 | 404)) => {
                    tracing::debug!(claim = claim.claim.name, %error, "Reservations of the claim cannot be read");
                    Ok(Vec::new())
                }
                Err(error) => Err(vec![error.failure(Step::Devices)]),
            }
        });
    let reserved: Result<Vec<_>, _> = join_all(reserved).await.into_iter().collect();
    let mut others = OtherPods {
        pods: Vec::new(),
        reserved: reserved?.into_iter().flatten().collect(),
    };
    // The checkpoint and reservations still show the claims of an unreadable pod.
    let listed = context
        .api
        .each_pod(&mut |pod| others.add(uid, (&pod).into(), claims))
        .await;
    listed.map_err(|error| vec![error.failure(Step::Devices)])?;
    // A pod that is terminating in the API, or not there, may still run.
    others.add_unlisted(uid, claims);
    // On a full node with many terminating pods the runtime is queried for few of them.
    for pod in others.pods.iter_mut().filter(|pod| !pod.is_running) {
        let observed = context.node.cri.pod_brief(&pod.uid).await;
        let observed = observed.map_err(|error| vec![Failure::new(Step::Devices, "", error)])?;
        pod.is_running = evidence::runs(context, &pod.uid.as_str().into(), &observed);
    }
    Ok(others)
}
