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
        failure::{Failure, Reasoned, first_message, ok_if_empty},
        pod::PodView,
        trace::Step,
    },
    node::{
        dirs::Dir,
        dra_checkpoint::{self, PreparedClaim},
        plugins::{ClaimRef, Registry, registry::DIRECTORY},
    },
    teardown::{
        attempt::Attempt,
        context::Context,
        evidence,
        plan::{PlanFacts, Planned, PlannedAction},
    },
    why::Why,
};

mod users;

use users::decide_all;

/// The claims that the kubelet has prepared, or begun to prepare, for the pod.
pub async fn prepared(context: &Context, view: &PodView) -> Result<Vec<PreparedClaim>, Vec<Failure>> {
    // Without the pod's object it is unknown whether the pod has claims.
    let shows_none = !view.dynamic_resources && !view.containers.is_empty();
    let claims = match prepared_claims(context).await {
        Ok(claims) => claims,
        Err(failures) if shows_none => {
            let cause = first_message(&failures);
            tracing::warn!(
                cause,
                "Cannot read which claims were prepared; the pod's object shows none"
            );
            return Ok(Vec::new());
        }
        Err(failures) => return Err(failures),
    };
    Ok(claims_of(view, claims))
}

/// The claims to unprepare with the pod: those that the checkpoint lists for it. If there are none, those that its object names
/// and that the checkpoint lists for other pods.
fn claims_of(view: &PodView, claims: Vec<PreparedClaim>) -> Vec<PreparedClaim> {
    let is_own = |prepared: &PreparedClaim| prepared.pods.contains(view.pod.uid.as_str());
    let (own, others): (Vec<_>, Vec<_>) = claims.into_iter().partition(is_own);
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

/// Unprepares the pod's devices before the terminal phase, which allows other pods to reserve the claims. It happens once: the driver
/// may be deleted after that. A pod that runs again may have prepared them again.
pub async fn run(attempt: &mut Attempt<'_>) -> Result<(), Vec<Failure>> {
    let (context, view) = (&attempt.worker.context, attempt.view());
    let uid = &view.pod.uid;
    if context.journal.read(uid, |entry| entry.claims_unprepared)
        && !evidence::runs(context, uid, &attempt.observed.pod)
    {
        return Ok(());
    }
    let claims = prepared(context, view).await?;
    if claims.is_empty() {
        return Ok(());
    }
    let span = attempt.worker.recorder.span(Step::Devices, "");
    let result = Box::pin(unprepare(context, view, &claims)).await;
    span.end(&result.as_ref().map_err(|failures| first_message(failures)));
    result?;
    context.journal.update(uid, |entry| entry.claims_unprepared = true);
    Ok(())
}

/// What happens to each claim.
pub async fn plan(facts: &PlanFacts) -> Planned {
    let (context, view) = (&facts.reads.context, &facts.reads.view);
    let read = async || {
        let prepared = prepared(context, view).await?;
        if prepared.is_empty() {
            return Ok(Vec::new());
        }
        let decided = decide_all(context, view, &prepared).await?.into_iter();
        let actions = decided.map(|(prepared, user)| {
            let claim = format!("{}/{}", prepared.claim.namespace, prepared.claim.name);
            match user {
                Some(used_by) => PlannedAction::KeepClaim { claim, used_by },
                None => PlannedAction::UnprepareClaim {
                    claim,
                    drivers: prepared.drivers.iter().cloned().collect(),
                },
            }
        });
        Ok(actions.collect())
    };
    let read = async { read().await.map_err(|failures: Vec<Failure>| Why::from(failures)) };
    vec![(Step::Devices, facts.of("its prepared claims", read).await)]
}

/// Unprepares the claims that no other pod uses. It may be repeated.
async fn unprepare(context: &Context, view: &PodView, claims: &[PreparedClaim]) -> Result<(), Vec<Failure>> {
    let mut by_driver: BTreeMap<&str, Vec<ClaimRef>> = BTreeMap::new();
    let mut used = Vec::new();
    for (prepared, user) in decide_all(context, view, claims).await? {
        match user {
            Some(by) => used.push((&prepared.claim, by)),
            None => {
                for driver in &prepared.drivers {
                    by_driver.entry(driver).or_default().push(prepared.claim.clone());
                }
            }
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

/// The claims in the checkpoint; none if no kubelet has ever prepared a claim on this node.
async fn prepared_claims(context: &Context) -> Result<Vec<PreparedClaim>, Vec<Failure>> {
    let root = context.node.storage.root.path().to_owned();
    let read = context.node.reads.run_blocking(move || match Dir::open(&root)? {
        Some(root) => dra_checkpoint::read(&root),
        None => Ok(None),
    });
    let failure = |why: &dyn Reasoned| Failure::new(Step::Devices, dra_checkpoint::FILE, why);
    let read = read.await.map_err(|not_done| failure(&not_done))?;
    Ok(read.map_err(|fault| failure(&fault))?.unwrap_or_default())
}

/// Calls all drivers at once. A failure of one does not affect the others.
async fn call_drivers(context: &Context, by_driver: BTreeMap<&str, Vec<ClaimRef>>) -> Result<(), Vec<Failure>> {
    if by_driver.is_empty() {
        return Ok(());
    }
    let dir = context.node.storage.root.path().join(DIRECTORY);
    let drivers = Registry::read(&dir, &context.node.effects).await;
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
                let failed = done.failed.iter();
                failed
                    .map(|(claim, why)| failure(&format_args!("claim {claim}: {why}")))
                    .collect()
            }
            Err(error) => vec![failure(&error)],
        }
    });
    ok_if_empty(join_all(calls).await.into_iter().flatten().collect())
}
