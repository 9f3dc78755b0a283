//! Devices of dynamic resources: drivers unprepare a pod's claims, except those that another pod uses. This happens before the
//! terminal phase, which allows other pods to reserve the claims.
//!
//! The kubelet's checkpoint has the prepared claims, with the UIDs of their pods. It is read and never written: a kubelet that
//! starts again finds the claims of deleted pods, and unprepares them once more. The claims in a pod's spec and status count only
//! if the checkpoint does not list the pod. kubelet 1.37: `pkg/kubelet/cm/dra/manager.go` `unprepareResourcesForPod`.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;

use crate::{
    model::{
        failure::{self, Failure, Reasoned, ok_if_empty},
        pod::PodView,
        trace::Step,
    },
    node::{
        dirs::Dir,
        dra_checkpoint::{self, Checkpoint, PreparedClaim},
        plugins::{ClaimRef, registry::DIRECTORY},
    },
    teardown::{
        context::Context,
        devices::decide::{OtherPod, decide},
    },
};

mod decide;
mod other_pods;

pub use decide::ClaimDecision;

/// The claims that the kubelet has prepared, or begun to prepare, for the pod.
pub async fn prepared(context: &Context, view: &PodView) -> Result<Vec<PreparedClaim>, Vec<Failure>> {
    // Without the pod's object it is unknown whether the pod has claims.
    let shows_none = !view.dynamic_resources && !view.containers.is_empty();
    let checkpoint = match checkpoint(context).await {
        Ok(Some(checkpoint)) => checkpoint,
        // No kubelet has ever prepared a claim on this node.
        Ok(None) => return Ok(Vec::new()),
        Err(failures) if shows_none => {
            let cause = failure::first_message(&failures);
            tracing::warn!(
                cause,
                "Cannot read which claims were prepared; the pod's object shows none"
            );
            return Ok(Vec::new());
        }
        Err(failures) => return Err(failures),
    };
    if !checkpoint.problems.is_empty() && !shows_none {
        let problems: Vec<_> = checkpoint.problems.iter().map(ToString::to_string).collect();
        let why = format!(
            "cannot read which claims the kubelet prepared for the pod: {} in {}; the pod waits for a kubelet, which starts only \
             after that file is moved away",
            problems.join("; "),
            context.node.storage.root.path().join(dra_checkpoint::FILE).display()
        );
        return Err(vec![Failure::new(Step::Devices, "", why)]);
    }
    Ok(claims_of(view, checkpoint.claims))
}

/// The claims to unprepare with the pod: those that the checkpoint lists for it. If there are none, those that its object names
/// and that the checkpoint lists for other pods.
fn claims_of(view: &PodView, claims: Vec<PreparedClaim>) -> Vec<PreparedClaim> {
    let (own, others): (Vec<_>, Vec<_>) = claims
        .into_iter()
        .partition(|prepared| prepared.pods.contains(view.pod.uid.as_str()));
    if !own.is_empty() {
        return own;
    }
    // Without a pod a claim is not prepared: the kubelet records the pod before it calls a driver.
    let is_named = |prepared: &PreparedClaim| {
        let ClaimRef { namespace, name, .. } = &prepared.claim;
        *namespace == *view.pod.namespace
            && view.claims.iter().any(|claim| **claim == **name)
            && !prepared.pods.is_empty()
    };
    others.into_iter().filter(is_named).collect()
}

/// Decides about each claim. Only reads.
pub async fn decide_all<'a>(
    context: &Context,
    view: &PodView,
    claims: &'a [PreparedClaim],
) -> Result<Vec<(&'a PreparedClaim, ClaimDecision)>, Vec<Failure>> {
    let uid = view.pod.uid.as_str();
    let other_pods = other_pods::find(context, uid, claims).await?;
    let decided = claims
        .iter()
        .map(|prepared| (prepared, decide(prepared, uid, &other_pods)));
    Ok(decided.collect())
}

/// Unprepares the claims that no other pod uses. It may be repeated.
pub async fn unprepare(context: &Context, view: &PodView, claims: &[PreparedClaim]) -> Result<(), Vec<Failure>> {
    let mut by_driver: BTreeMap<&str, Vec<ClaimRef>> = BTreeMap::new();
    let mut used = Vec::new();
    for (prepared, decision) in decide_all(context, view, claims).await? {
        match decision {
            ClaimDecision::Unprepare => {
                for driver in &prepared.drivers {
                    by_driver.entry(driver).or_default().push(prepared.claim.clone());
                }
            }
            ClaimDecision::Used(by) => used.push((&prepared.claim, by)),
        }
    }
    call_drivers(context, by_driver).await?;
    // Logged once, not in each attempt.
    for (ClaimRef { namespace, name, .. }, by) in used {
        tracing::info!(
            claim = format_args!("{namespace}/{name}"),
            by,
            "Another pod uses the claim: its devices stay prepared"
        );
    }
    Ok(())
}

async fn checkpoint(context: &Context) -> Result<Option<Checkpoint>, Vec<Failure>> {
    let root = context.node.storage.root.path().to_owned();
    let read = context.node.reads.run_blocking(move || match Dir::open(&root)? {
        Some(root) => dra_checkpoint::read(&root),
        None => Ok(None),
    });
    let failure = |why: &dyn Reasoned| vec![Failure::new(Step::Devices, dra_checkpoint::FILE, why)];
    match read.await {
        Ok(read) => read.map_err(|fault| failure(&fault)),
        Err(not_done) => Err(failure(&not_done)),
    }
}

/// Calls all drivers at once. A failure of one does not affect the others.
async fn call_drivers(context: &Context, by_driver: BTreeMap<&str, Vec<ClaimRef>>) -> Result<(), Vec<Failure>> {
    if by_driver.is_empty() {
        return Ok(());
    }
    let registrars = &context.node.storage.registrars;
    let drivers = registrars
        .read(&context.node.storage.root.path().join(DIRECTORY), &context.node.effects)
        .await;
    let drivers = drivers.map_err(|fault| vec![Failure::new(Step::Devices, "", fault)])?;
    let calls = by_driver.iter().map(async |(driver, claims)| -> Vec<Failure> {
        let failure = |why: &dyn Reasoned| Failure::new(Step::Devices, driver, why);
        let plugin = match drivers.dra(driver).await {
            Ok(plugin) => plugin,
            Err(unavailable) => return vec![failure(&unavailable)],
        };
        match plugin.unprepare(claims, &context.node.effects).await {
            Ok(done) => {
                let unknown: BTreeSet<_> = done.unknown.iter().collect();
                if !unknown.is_empty() {
                    tracing::warn!(
                        driver,
                        ?unknown,
                        "Driver answers for claims that it was not asked about"
                    );
                }
                let failed = done
                    .claims
                    .iter()
                    .filter_map(|(claim, done)| Some((claim, done.as_ref().err()?)));
                failed
                    .map(|(claim, why)| failure(&format_args!("claim {claim}: {why}")))
                    .collect()
            }
            Err(error) => vec![failure(&error)],
        }
    });
    ok_if_empty(join_all(calls).await.into_iter().flatten().collect())
}

impl From<&PodView> for OtherPod {
    fn from(view: &PodView) -> Self {
        Self {
            uid: view.pod.uid.to_string(),
            namespace: view.pod.namespace.to_string(),
            claims: view.claims.iter().map(ToString::to_string).collect(),
            is_running: !view.must_terminate(),
        }
    }
}
