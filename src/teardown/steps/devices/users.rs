//! The other pods of this node that use a claim.
//!
//! The kubelet decides by its cache of a claim's pods, and removes a pod from it even if the call then fails: its retry takes the
//! devices from another pod that still runs. This agent has no cache. A claim stays prepared if one of three sources names a pod
//! that may use it: the checkpoint, the specs of the node's pods, and `reservedFor` of the claim.

use std::collections::BTreeSet;

use futures::future::join_all;

use crate::{
    model::{failure::Failure, pod::PodView, trace::Step},
    node::dra_checkpoint::PreparedClaim,
    teardown::{context::Context, evidence},
};

/// Claims, and other pods of this node.
struct ClaimUsers<'a> {
    /// UID of the pod that terminates.
    uid: &'a str,
    /// Each claim, with the UIDs of the other pods that a source names.
    claims: Vec<(&'a PreparedClaim, BTreeSet<String>)>,
    /// UIDs of those that have not terminated: the object or the runtime shows that they run.
    running: BTreeSet<String>,
}

// === impl ClaimUsers ===

impl<'a> ClaimUsers<'a> {
    /// `reserved`: for each claim the UIDs of the pods for which it is reserved.
    fn new(uid: &'a str, claims: &'a [PreparedClaim], reserved: Vec<Vec<String>>) -> Self {
        let claims = claims.iter().zip(reserved).map(|(prepared, reserved)| {
            let named = prepared.pods.iter().cloned().chain(reserved);
            (prepared, named.filter(|named| named != uid).collect())
        });
        Self {
            uid,
            claims: claims.collect(),
            running: BTreeSet::new(),
        }
    }

    /// Adds a pod of the API, unless it uses none of these claims: the pods of a node may name many others.
    fn add(&mut self, view: &PodView) {
        let uid = view.pod.uid.as_str();
        for (PreparedClaim { claim, .. }, users) in self.claims.iter_mut().filter(|_| uid != self.uid) {
            if *claim.namespace == *view.pod.namespace && view.claims.iter().any(|it| **it == *claim.name) {
                users.insert(uid.to_owned());
            }
            if users.contains(uid) && !view.must_terminate() {
                self.running.insert(uid.to_owned());
            }
        }
    }

    /// Pods that are terminating in the API, or not there. They may still run.
    fn not_shown_as_running(&self) -> BTreeSet<String> {
        let named = self.claims.iter().flat_map(|(_, users)| users);
        named.filter(|uid| !self.running.contains(*uid)).cloned().collect()
    }

    /// Each claim, with the UID of another pod that uses it. Without one it may be unprepared.
    fn decide(self) -> Vec<(&'a PreparedClaim, Option<String>)> {
        let user_of = |users: BTreeSet<String>| users.into_iter().find(|it| self.running.contains(it));
        let claims = self.claims.into_iter();
        claims.map(|(prepared, users)| (prepared, user_of(users))).collect()
    }
}

/// The claims, each with the UID of another pod that uses it, by API server and runtime. Only reads.
pub async fn decide_all<'a>(
    context: &Context,
    view: &'a PodView,
    claims: &'a [PreparedClaim],
) -> Result<Vec<(&'a PreparedClaim, Option<String>)>, Vec<Failure>> {
    let reserved = claims
        .iter()
        .map(async |claim| match context.api.reserved_for(&claim.claim).await {
            // Deleted, or named by no pod of this node: then the node may not read it.
            Err(error) if matches!(error.code, Some(403 | 404)) => {
                tracing::debug!(claim = claim.claim.name, %error, "Reservations of the claim cannot be read");
                Ok(Vec::new())
            }
            by => by.map_err(|error| error.failure(Step::Devices)),
        });
    let reserved: Result<Vec<_>, Failure> = join_all(reserved).await.into_iter().collect();
    let mut users = ClaimUsers::new(view.pod.uid.as_str(), claims, reserved?);
    // The checkpoint and reservations still show the claims of an unreadable pod.
    let listed = context.api.each_pod(&mut |pod| users.add(&pod)).await;
    listed.map_err(|error| error.failure(Step::Devices))?;
    // On a full node with many terminating pods the runtime is queried for few of them.
    for uid in users.not_shown_as_running() {
        let observed = context.node.cri.pod_brief(&uid).await;
        let observed = observed.map_err(|error| Failure::new(Step::Devices, "", error))?;
        if evidence::runs(context, &uid.as_str().into(), &observed) {
            users.running.insert(uid);
        }
    }
    Ok(users.decide())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::pod::PodRef, node::plugins::ClaimRef};

    fn claim(pods: &[&str]) -> PreparedClaim {
        PreparedClaim {
            claim: ClaimRef {
                namespace: "ns".into(),
                uid: "c".into(),
                name: "gpu".into(),
            },
            pods: pods.iter().map(|&pod| pod.to_owned()).collect(),
            drivers: ["d".to_owned()].into(),
        }
    }

    fn pod(uid: &str, namespace: &str, claims: &[&str], is_running: bool) -> PodView {
        PodView {
            claims: claims.iter().map(|&claim| claim.into()).collect(),
            terminal_phase: !is_running,
            ..PodView::identity_only(PodRef {
                uid: uid.into(),
                namespace: namespace.into(),
                name: uid.into(),
            })
        }
    }

    #[test]
    fn only_pods_that_may_use_a_claim_are_kept() {
        let claims = [claim(&["a", "b", "gone"])];
        let mut users = ClaimUsers::new("a", &claims, vec![vec!["d".into(), "a".into()]]);
        for (uid, namespace, claim, is_running) in [
            ("a", "ns", "gpu", false),
            ("b", "x", "", true),
            ("d", "x", "", true),
            ("e", "ns", "gpu", true),
            ("f", "x", "gpu", true),
            ("g", "ns", "nic", true),
        ] {
            users.add(&pod(uid, namespace, &[claim], is_running));
        }
        let kept: Vec<_> = users.claims[0].1.iter().collect();
        assert_eq!(kept, ["b", "d", "e", "gone"]);
        assert_eq!(users.running.iter().collect::<Vec<_>>(), ["b", "d", "e"]);
        assert_eq!(users.not_shown_as_running(), ["gone".to_owned()].into());
    }

    #[test]
    fn claim_stays_prepared_while_any_source_names_a_running_pod() {
        let other = |namespace, claim: &str, is_running| Some(pod("b", namespace, &[claim], is_running));
        for (what, checkpoint, listed, reserved, is_used) in [
            ("alone", &["a"][..], None, None, false),
            ("by the checkpoint", &["a", "b"], other("x", "", true), None, true),
            (
                "also where the checkpoint has lost it",
                &["a"],
                other("ns", "gpu", true),
                None,
                true,
            ),
            (
                "also by the reservation alone",
                &["a"],
                other("ns", "", true),
                Some("b"),
                true,
            ),
            (
                "one that has terminated",
                &["a", "b"],
                other("ns", "gpu", false),
                Some("b"),
                false,
            ),
            ("one that is unknown here", &["a", "b"], None, Some("b"), false),
            (
                "another namespace's claim of that name",
                &["a"],
                other("x", "gpu", true),
                None,
                false,
            ),
            ("another claim", &["a"], other("ns", "nic", true), None, false),
            (
                "the pod itself",
                &["a"],
                Some(pod("a", "ns", &["gpu"], true)),
                Some("a"),
                false,
            ),
        ] {
            let claims = [claim(checkpoint)];
            let reserved = reserved.iter().map(ToString::to_string).collect();
            let mut users = ClaimUsers::new("a", &claims, vec![reserved]);
            listed.iter().for_each(|listed| users.add(listed));
            let user = users.decide().pop().unwrap().1;
            assert_eq!(user, is_used.then(|| "b".to_owned()), "{what}");
        }
    }
}
