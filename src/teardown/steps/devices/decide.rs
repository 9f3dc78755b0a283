//! Decides whether a claim may be unprepared. Pure.
//!
//! The kubelet decides by its cache of a claim's pods, and removes a pod from it even if the call then fails: its retry takes the
//! devices from another pod that still runs. This agent has no cache. A claim stays prepared if one of three sources names a pod
//! that may use it: the checkpoint, the specs of the node's pods, and `reservedFor` of the claim.

use std::collections::BTreeSet;

use crate::node::dra_checkpoint::PreparedClaim;

/// Another pod of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherPod {
    pub uid: String,
    pub namespace: String,
    /// Names of the claims in its object.
    pub claims: Vec<String>,
    /// It has not terminated: its object or the runtime shows that it runs.
    pub is_running: bool,
}

/// Other pods of this node, and reservations of claims.
#[derive(Debug, Clone, Default)]
pub struct OtherPods {
    pub pods: Vec<OtherPod>,
    /// UIDs of claims, each with the UID of a pod for which it is reserved.
    pub reserved: Vec<(String, String)>,
}

// === impl OtherPods ===

impl OtherPods {
    /// Adds a pod of the API, unless it uses none of these claims: the pods of a node may name many others.
    pub fn add(&mut self, uid: &str, pod: OtherPod, claims: &[PreparedClaim]) {
        if pod.uid != uid && claims.iter().any(|claim| uses(&pod, claim, &self.reserved)) {
            self.pods.push(pod);
        }
    }

    /// Adds the pods that only the checkpoint or a reservation names.
    pub fn add_unlisted(&mut self, uid: &str, claims: &[PreparedClaim]) {
        let reserved = self.reserved.iter().map(|(_, by)| by);
        let mut named: BTreeSet<&String> = claims.iter().flat_map(|claim| &claim.pods).chain(reserved).collect();
        named.retain(|named| *named != uid && self.pods.iter().all(|pod| pod.uid != **named));
        let unlisted = named.into_iter().map(|named| OtherPod {
            uid: named.clone(),
            namespace: String::new(),
            claims: Vec::new(),
            is_running: false,
        });
        let unlisted: Vec<_> = unlisted.collect();
        self.pods.extend(unlisted);
    }
}

/// Whether any source shows that the pod uses the claim.
fn uses(pod: &OtherPod, prepared: &PreparedClaim, reserved: &[(String, String)]) -> bool {
    let claim = &prepared.claim;
    let by_checkpoint = prepared.pods.contains(&pod.uid);
    let by_spec = pod.namespace == claim.namespace && pod.claims.contains(&claim.name);
    let mut reserved = reserved.iter();
    by_checkpoint || by_spec || reserved.any(|(of, by)| *of == claim.uid && *by == pod.uid)
}

/// UID of another pod than `uid` that uses the claim. Without one it may be unprepared.
pub fn user_of(prepared: &PreparedClaim, uid: &str, other_pods: &OtherPods) -> Option<String> {
    let mut others = other_pods.pods.iter().filter(|pod| pod.uid != uid && pod.is_running);
    let user = others.find(|pod| uses(pod, prepared, &other_pods.reserved));
    user.map(|user| user.uid.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::plugins::ClaimRef;

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

    fn pod(uid: &str, namespace: &str, claims: &[&str], is_running: bool) -> OtherPod {
        OtherPod {
            uid: uid.into(),
            namespace: namespace.into(),
            claims: claims.iter().map(|&claim| claim.to_owned()).collect(),
            is_running,
        }
    }

    #[test]
    fn only_pods_that_may_use_a_claim_are_kept() {
        let claims = [claim(&["a", "b", "gone"])];
        let mut others = OtherPods {
            reserved: vec![("c".into(), "d".into()), ("c".into(), "a".into())],
            ..OtherPods::default()
        };
        let other_claims: Vec<String> = (0..1000).map(|claim| claim.to_string()).collect();
        let names: Vec<&str> = other_claims.iter().map(String::as_str).collect();
        for listed in [
            pod("a", "ns", &["gpu"], false),
            pod("b", "x", &[], true),
            pod("d", "x", &[], true),
            pod("e", "ns", &["gpu"], true),
            pod("f", "x", &["gpu"], true),
            pod("g", "ns", &names, true),
        ] {
            others.add("a", listed, &claims);
        }
        others.add_unlisted("a", &claims);
        let kept: Vec<&str> = others.pods.iter().map(|pod| &*pod.uid).collect();
        assert_eq!(kept, ["b", "d", "e", "gone"]);
    }

    #[test]
    fn claim_stays_prepared_while_any_source_names_a_running_pod() {
        let used = || Some("b".to_owned());
        for (what, checkpoint, other, reserved, expected) in [
            ("alone", &["a"][..], None, None, None),
            (
                "by the checkpoint",
                &["a", "b"],
                Some(pod("b", "x", &[], true)),
                None,
                used(),
            ),
            (
                "also where the checkpoint has lost it",
                &["a"],
                Some(pod("b", "ns", &["gpu"], true)),
                None,
                used(),
            ),
            (
                "also by the reservation alone",
                &["a"],
                Some(pod("b", "ns", &[], true)),
                Some("b"),
                used(),
            ),
            (
                "one that has terminated",
                &["a", "b"],
                Some(pod("b", "ns", &["gpu"], false)),
                Some("b"),
                None,
            ),
            ("one that is unknown here", &["a", "b"], None, Some("b"), None),
            (
                "another namespace's claim of that name",
                &["a"],
                Some(pod("b", "x", &["gpu"], true)),
                None,
                None,
            ),
            (
                "another claim",
                &["a"],
                Some(pod("b", "ns", &["nic"], true)),
                None,
                None,
            ),
            (
                "the pod itself",
                &["a"],
                Some(pod("a", "ns", &["gpu"], true)),
                Some("a"),
                None,
            ),
        ] {
            let other_pods = OtherPods {
                pods: other.into_iter().collect(),
                reserved: reserved
                    .map(|by: &str| ("c".to_owned(), by.to_owned()))
                    .into_iter()
                    .collect(),
            };
            assert_eq!(user_of(&claim(checkpoint), "a", &other_pods), expected, "{what}");
        }
    }
}
