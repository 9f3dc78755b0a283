//! Whether a claim may be unprepared. Pure.
//!
//! The kubelet decides by what it remembers of a claim's pods, and forgets one on a call that then fails: its second try
//! takes the devices from the other pod, which still runs. Here nothing is remembered. A claim stays if any of three
//! witnesses names a pod that may still use it: the checkpoint, the pods of this node by their specs, and the claim's own
//! `reservedFor`.

use crate::node::dra_checkpoint::PreparedClaim;

/// Another pod of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    pub uid: String,
    pub namespace: String,
    /// Names of the claims that its object says it uses.
    pub claims: Vec<String>,
    /// It has not ended: by its object it goes on, or the runtime has something of it that runs.
    pub lives: bool,
}

/// Other pods of this node, and for whom claims are reserved.
#[derive(Debug, Clone, Default)]
pub struct Neighbours {
    pub pods: Vec<Neighbour>,
    /// UIDs of claims, each with a UID for which it is reserved.
    pub reserved: Vec<(String, String)>,
}

/// What becomes of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// No other pod uses it.
    Unprepare,
    /// The pod with this UID does.
    Used(String),
}

/// Whether any witness says that the pod uses the claim.
pub fn uses(pod: &Neighbour, prepared: &PreparedClaim, reserved: &[(String, String)]) -> bool {
    let claim = &prepared.claim;
    let by_checkpoint = prepared.pods.contains(&pod.uid);
    let by_spec = pod.namespace == claim.namespace && pod.claims.contains(&claim.name);
    let mut reserved = reserved.iter();
    by_checkpoint || by_spec || reserved.any(|(of, by)| *of == claim.uid && *by == pod.uid)
}

/// What becomes of this claim when the pod `uid` ends.
pub fn decide(prepared: &PreparedClaim, uid: &str, neighbours: &Neighbours) -> Verdict {
    let mut others = neighbours.pods.iter().filter(|pod| pod.uid != uid && pod.lives);
    match others.find(|pod| uses(pod, prepared, &neighbours.reserved)) {
        Some(user) => Verdict::Used(user.uid.clone()),
        None => Verdict::Unprepare,
    }
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

    fn pod(uid: &str, namespace: &str, claims: &[&str], lives: bool) -> Neighbour {
        Neighbour {
            uid: uid.into(),
            namespace: namespace.into(),
            claims: claims.iter().map(|&claim| claim.to_owned()).collect(),
            lives,
        }
    }

    #[test]
    fn a_claim_stays_as_long_as_one_witness_names_a_pod_that_lives() {
        let used = || Verdict::Used("b".into());
        for (what, checkpoint, other, reserved, expected) in [
            ("alone", &["a"][..], None, None, Verdict::Unprepare),
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
                "one that has ended",
                &["a", "b"],
                Some(pod("b", "ns", &["gpu"], false)),
                Some("b"),
                Verdict::Unprepare,
            ),
            (
                "one that nobody knows here",
                &["a", "b"],
                None,
                Some("b"),
                Verdict::Unprepare,
            ),
            (
                "another namespace's claim of that name",
                &["a"],
                Some(pod("b", "x", &["gpu"], true)),
                None,
                Verdict::Unprepare,
            ),
            (
                "another claim",
                &["a"],
                Some(pod("b", "ns", &["nic"], true)),
                None,
                Verdict::Unprepare,
            ),
            (
                "the pod itself",
                &["a"],
                Some(pod("a", "ns", &["gpu"], true)),
                Some("a"),
                Verdict::Unprepare,
            ),
        ] {
            let neighbours = Neighbours {
                pods: other.into_iter().collect(),
                reserved: reserved
                    .map(|by: &str| ("c".to_owned(), by.to_owned()))
                    .into_iter()
                    .collect(),
            };
            assert_eq!(decide(&claim(checkpoint), "a", &neighbours), expected, "{what}");
        }
    }
}
