//! Queries API server and runtime for other pods of this node that may use a claim.

use std::collections::BTreeSet;

use futures::future::join_all;

use super::decide::{OtherPod, OtherPods, uses};
use crate::{
    model::{
        failure::{Failure, Reasoned},
        trace::Step,
    },
    node::dra_checkpoint::PreparedClaim,
    teardown::{context::Context, evidence},
};

/// All pods that may use one of these claims, except the pod `uid`.
pub async fn find(context: &Context, uid: &str, claims: &[PreparedClaim]) -> Result<OtherPods, Vec<Failure>> {
    let failure = |why: &dyn Reasoned| vec![Failure::new(Step::Devices, "", why)];
    // The checkpoint and reservations still show the claims of an unreadable pod.
    let mut pods = Vec::new();
    let listed = context.api.each_pod(&mut |pod| pods.push(OtherPod::from(&pod))).await;
    listed.map_err(|error| vec![error.failure(Step::Devices)])?;
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
    let reserved: Vec<_> = reserved?.into_iter().flatten().collect();
    // A pod that is terminating in the API, or not there, may still run.
    let known: BTreeSet<String> = pods.iter().map(|pod| pod.uid.clone()).collect();
    let witnessed = claims.iter().flat_map(|claim| &claim.pods);
    let witnessed: BTreeSet<&String> = witnessed.chain(reserved.iter().map(|(_, by)| by)).collect();
    pods.extend(
        witnessed
            .into_iter()
            .filter(|pod| !known.contains(*pod))
            .map(|pod| OtherPod {
                uid: pod.clone(),
                namespace: String::new(),
                claims: Vec::new(),
                is_running: false,
            }),
    );
    // On a full node with many terminating pods the runtime is queried for few of them.
    let may_use = |pod: &OtherPod| claims.iter().any(|claim| uses(pod, claim, &reserved));
    for pod in pods.iter_mut().filter(|pod| pod.uid != uid && !pod.is_running) {
        if may_use(pod) {
            let observed = context
                .node
                .cri
                .pod_brief(&pod.uid)
                .await
                .map_err(|error| failure(&error))?;
            pod.is_running = evidence::runs(context, &pod.uid.as_str().into(), &observed);
        }
    }
    Ok(OtherPods { pods, reserved })
}
