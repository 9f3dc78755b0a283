//! Safety holds: each blocks effects until a user approves it. Pure.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{journal::Approval, model::trace::Trace, why::Why};

/// Item: the Node has another UID than the recorded one.
pub const NODE_UID: &str = "node-uid";
/// Item: too many pods are missing at once.
pub const ABSENCE: &str = "absence";
/// Prefix of the item of a pod: `pod/NAMESPACE/NAME`.
const POD: &str = "pod/";

/// All safety holds of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SafetyHolds {
    /// Why all effects are blocked, if no approval can change that, such as a running kubelet.
    pub blocked: Option<String>,
    /// Holds that a user can approve.
    pub items: Vec<SafetyHold>,
    /// The last approvals, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
}

/// One safety hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SafetyHold {
    /// Its name, such as `absence` or `pod/NAMESPACE/NAME`.
    pub item: String,
    /// UID of the pod. It names the hold, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Since when it blocks.
    pub since: Option<Timestamp>,
    /// Message for the user.
    pub why: String,
    /// What the agent does after an approval.
    pub approval_effect: String,
    /// Evidence: containers, sandboxes and cgroups of a pod, or UIDs of missing pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<String>,
    /// Digest of the item and its evidence. An approval that names it does not cover new evidence.
    #[serde(default)]
    pub digest: String,
}

// === impl SafetyHold ===

impl SafetyHold {
    /// Holds of single pods, each for a mismatch of evidence.
    pub fn of_pods(traces: &[Trace]) -> impl Iterator<Item = Self> + '_ {
        let items = traces.iter().filter_map(|trace| {
            let mismatch = trace.mismatch.as_ref()?;
            Some(Self {
                item: format!("{POD}{}/{}", trace.namespace, trace.name),
                uid: Some(trace.uid.clone()),
                since: Some(mismatch.since),
                why: mismatch.why.clone(),
                approval_effect: mismatch.mismatch.kind.approval_effect().to_owned(),
                facts: mismatch.mismatch.facts.iter().cloned().collect(),
                digest: String::new(),
            })
        });
        items.map(Self::sealed)
    }

    /// Sets the digest. `why` is part of it for a hold of the whole node, where it changes only with new evidence. For a pod it may
    /// contain numbers that change, such as a count of processes.
    #[must_use]
    pub fn sealed(self) -> Self {
        let why = self.uid.is_none().then_some(&self.why);
        // Only compared with digests of the same program.
        let mut hasher = DefaultHasher::new();
        (&self.item, &self.uid, why, &self.approval_effect, &self.facts).hash(&mut hasher);
        let digest = format!("{:016x}", hasher.finish());
        Self { digest, ..self }
    }

    fn is_called(&self, name: &str) -> bool {
        self.item == name || self.uid.as_deref() == Some(name)
    }
}

// === impl SafetyHolds ===

impl SafetyHolds {
    /// The hold with this item name or pod UID.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn find(&self, name: &str) -> Result<&SafetyHold, Why> {
        let mut called = self.items.iter().filter(|item| item.is_called(name));
        match (called.next(), called.next()) {
            (Some(item), None) => Ok(item),
            (Some(_), Some(_)) => Err(Why::new(format_args!(
                "more than one pod with a safety hold has the name {name}: name its UID instead; {}",
                self.all()
            ))),
            (None, _) if self.items.is_empty() => Err("there is no safety hold".into()),
            (None, _) => Err(format!("there is no safety hold {name:?}; {}", self.all()).into()),
        }
    }

    fn all(&self) -> String {
        let names = self.items.iter().map(|item| match &item.uid {
            Some(uid) => format!("{} (UID {uid})", item.item),
            None => item.item.clone(),
        });
        format!("safety holds: {}", names.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(item: &str, uid: Option<&str>) -> SafetyHold {
        SafetyHold {
            item: item.to_owned(),
            uid: uid.map(str::to_owned),
            since: None,
            why: String::new(),
            approval_effect: String::new(),
            facts: Vec::new(),
            digest: String::new(),
        }
    }

    #[test]
    fn digest_covers_the_evidence_and_not_the_message() {
        let digest = |facts: &[&str], why: &str, release: &str| {
            let held = SafetyHold {
                facts: facts.iter().map(|&fact| fact.to_owned()).collect(),
                why: why.to_owned(),
                approval_effect: release.to_owned(),
                ..item("pod/ns/a", Some("1"))
            };
            held.sealed().digest
        };
        let shown = digest(&["container 1"], "it holds 3 processes", "it is ended");
        assert_eq!(digest(&["container 1"], "it holds 2 processes", "it is ended"), shown);
        assert_ne!(digest(&["container 1", "container 2"], "", "it is ended"), shown);
        assert_ne!(digest(&["container 1"], "", "it is ended otherwise"), shown);
    }

    #[test]
    fn item_is_found_by_its_unique_name_and_an_error_lists_all_names() {
        let report = SafetyHolds {
            blocked: None,
            items: vec![
                item(ABSENCE, None),
                item("pod/ns/a", Some("1")),
                item("pod/ns/a", Some("2")),
                item("pod/ns/b", Some("3")),
            ],
            approvals: Vec::new(),
        };
        let uid = |name| report.find(name).map(|item| item.uid.as_deref());
        assert_eq!(uid("absence"), Ok(None));
        assert_eq!(uid("pod/ns/b"), Ok(Some("3")));
        assert_eq!(uid("2"), Ok(Some("2")));
        assert!(uid("pod/ns/a").unwrap_err().to_string().contains("name its UID"));
        let error = uid("node-uid").unwrap_err().to_string();
        for part in ["\"node-uid\"", "absence", "pod/ns/b (UID 3)"] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
        let error = SafetyHolds::default().find("x").unwrap_err().to_string();
        assert!(error.contains("there is no safety hold"), "{error}");
    }
}
