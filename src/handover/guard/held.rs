//! What is held back until the operator releases it, item by item. Pure.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::trace::Story;

/// The Node has another UID than the recorded one.
pub const NODE_UID: &str = "node-uid";
/// What lists of pods lack is doubted.
pub const ABSENCE: &str = "absence";
/// Before namespace and name of a pod.
const POD: &str = "pod/";

/// All that is held back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldReport {
    /// What nobody can release, such as a kubelet that is here.
    pub held: Option<String>,
    /// What can be released.
    pub items: Vec<HeldItem>,
}

/// Something that is held back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldItem {
    /// By which it is released.
    pub item: String,
    /// Of a pod: its UID, by which it can be released as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Since when.
    pub since: Option<Timestamp>,
    /// Why.
    pub why: String,
    /// What a release does.
    pub release: String,
    /// What it rests on: containers, sandboxes and cgroups of a pod, or UIDs of pods that are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<String>,
    /// Stands for what is released: whoever names it releases nothing that has turned up since.
    #[serde(default)]
    pub digest: String,
}

// === impl HeldItem ===

impl HeldItem {
    /// Pods that wait for a decision about them alone.
    pub fn of_pods(stories: &[Story]) -> impl Iterator<Item = Self> + '_ {
        let items = stories.iter().filter_map(|story| {
            let mismatch = story.mismatch.as_ref()?;
            Some(Self {
                item: format!("{POD}{}/{}", story.namespace, story.name),
                uid: Some(story.uid.clone()),
                since: Some(mismatch.since),
                why: mismatch.why.clone(),
                release: mismatch.mismatch.kind.released().to_owned(),
                facts: mismatch.mismatch.facts.iter().cloned().collect(),
                digest: String::new(),
            })
        });
        items.map(Self::sealed)
    }

    /// With its digest. Its words may change while nothing else does, such as with the number of processes.
    #[must_use]
    pub fn sealed(self) -> Self {
        // Only ever compared by the program that made it.
        let mut hasher = DefaultHasher::new();
        (&self.item, &self.uid, &self.release, &self.facts).hash(&mut hasher);
        Self {
            digest: format!("{:016x}", hasher.finish()),
            ..self
        }
    }

    fn is_called(&self, name: &str) -> bool {
        self.item == name || self.uid.as_deref() == Some(name)
    }
}

// === impl HeldReport ===

impl HeldReport {
    /// The item of this name, or why there is no such one.
    pub fn find(&self, name: &str) -> Result<&HeldItem, String> {
        let mut called = self.items.iter().filter(|item| item.is_called(name));
        match (called.next(), called.next()) {
            (Some(item), None) => Ok(item),
            (Some(_), Some(_)) => Err(format!(
                "more than one pod that is held is called {name}: name its UID instead; {}",
                self.all()
            )),
            (None, _) => Err(format!("nothing that is held is called {name:?}; {}", self.all())),
        }
    }

    fn all(&self) -> String {
        let names = self.items.iter().map(|item| match &item.uid {
            Some(uid) => format!("{} (UID {uid})", item.item),
            None => item.item.clone(),
        });
        let names: Vec<_> = names.collect();
        if names.is_empty() {
            "nothing is held that could be released".to_owned()
        } else {
            format!("held are: {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(item: &str, uid: Option<&str>) -> HeldItem {
        HeldItem {
            item: item.to_owned(),
            uid: uid.map(str::to_owned),
            since: None,
            why: String::new(),
            release: String::new(),
            facts: Vec::new(),
            digest: String::new(),
        }
    }

    #[test]
    fn a_digest_changes_with_what_is_released_and_not_with_its_words() {
        let digest = |facts: &[&str], why: &str, release: &str| {
            let held = HeldItem {
                facts: facts.iter().map(|&fact| fact.to_owned()).collect(),
                why: why.to_owned(),
                release: release.to_owned(),
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
    fn an_item_is_found_by_its_one_name_and_who_is_wrong_is_told_all_names() {
        let report = HeldReport {
            held: None,
            items: vec![
                item(ABSENCE, None),
                item("pod/ns/a", Some("1")),
                item("pod/ns/a", Some("2")),
                item("pod/ns/b", Some("3")),
            ],
        };
        let uid = |name| report.find(name).map(|item| item.uid.as_deref());
        assert_eq!(uid("absence"), Ok(None));
        assert_eq!(uid("pod/ns/b"), Ok(Some("3")));
        assert_eq!(uid("2"), Ok(Some("2")));
        assert!(uid("pod/ns/a").unwrap_err().contains("name its UID"));
        let told = uid("node-uid").unwrap_err();
        for words in ["\"node-uid\"", "absence", "pod/ns/b (UID 3)"] {
            assert!(told.contains(words), "{words} is not in {told}");
        }
        let told = HeldReport::default().find("x").unwrap_err();
        assert!(told.contains("nothing is held"), "{told}");
    }
}
