//! The pods of this node as they were last seen, and how a list or an event differs from that. Pure.

use std::{collections::HashMap, sync::Arc};

use crate::{
    pod::{PodUid, PodView},
    watch::Change,
};

/// By UID: a pod recreated under the same name is another pod.
#[derive(Debug, Default)]
pub struct KnownPods {
    pods: HashMap<PodUid, Arc<PodView>>,
    /// Those that an earlier run began to take down and that this one has not seen.
    remembered: HashMap<PodUid, Arc<PodView>>,
}

// === impl KnownPods ===

impl KnownPods {
    /// Pods that an earlier run began to take down: suspects from the first list on.
    pub fn remember(&mut self, pods: impl IntoIterator<Item = PodView>) {
        let pods = pods.into_iter().map(|view| (view.pod.uid.clone(), Arc::new(view)));
        self.remembered.extend(pods);
    }

    /// How many were seen and are not known to be gone.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Pods that have no reason to vanish.
    pub fn living(&self) -> usize {
        self.pods.values().filter(|view| !view.ends()).count()
    }

    /// A complete list: everything that it shows is news to those who wait for it, and what it lacks is suspected to be
    /// gone. Suspects stay known until [`Self::gone`] is told.
    pub fn listed(&mut self, pods: Vec<PodView>) -> (Vec<Change>, Vec<Arc<PodView>>) {
        let mut before = std::mem::take(&mut self.pods);
        let mut changes = Vec::new();
        for view in pods {
            before.remove(&view.pod.uid);
            changes.push(self.keep(view));
        }
        let suspects = before.values().chain(self.remembered.values()).cloned().collect();
        self.pods.extend(before);
        (changes, suspects)
    }

    /// ADDED or MODIFIED.
    pub fn seen(&mut self, view: PodView) -> Change {
        self.keep(view)
    }

    /// A DELETED event, which carries the last state of the object.
    pub fn deleted(&mut self, view: PodView) -> Change {
        self.remembered.remove(&view.pod.uid);
        self.pods.remove(&view.pod.uid);
        Change::Removed(Arc::new(view))
    }

    /// A suspect is proven to be gone.
    pub fn gone(&mut self, uid: &PodUid) -> Option<Change> {
        let remembered = self.remembered.remove(uid);
        self.pods.remove(uid).or(remembered).map(Change::Removed)
    }

    fn keep(&mut self, view: PodView) -> Change {
        let view = Arc::new(view);
        // What is kept of a pod that lives is small; the whole object stays with whoever takes it down.
        let small = if view.object.is_some() {
            Arc::new(PodView {
                object: None,
                ..PodView::clone(&view)
            })
        } else {
            Arc::clone(&view)
        };
        self.remembered.remove(&view.pod.uid);
        self.pods.insert(view.pod.uid.clone(), small);
        Change::Seen(view)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn view(name: &str, uid: &str) -> PodView {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "ns", "uid": uid },
            "spec": { "containers": [{ "name": "main" }] },
        }))
        .unwrap();
        PodView::project(pod).unwrap()
    }

    fn uids(pods: &[Arc<PodView>]) -> Vec<&str> {
        let mut uids: Vec<_> = pods.iter().map(|view| view.pod.uid.as_str()).collect();
        uids.sort_unstable();
        uids
    }

    #[test]
    fn a_list_names_as_suspects_what_it_lacks_and_keeps_them_until_they_are_proven_gone() {
        let mut known = KnownPods::default();
        known.listed(vec![view("a", "1"), view("b", "2")]);
        let (changes, suspects) = known.listed(vec![view("b", "2")]);
        assert_eq!((changes.len(), uids(&suspects)), (1, vec!["1"]));
        let (_, suspects) = known.listed(vec![view("b", "2")]);
        assert_eq!(uids(&suspects), ["1"], "a suspicion that was not settled comes again");
        assert!(matches!(known.gone(&"1".into()), Some(Change::Removed(_))));
        assert!(known.gone(&"1".into()).is_none());
    }

    #[test]
    fn a_pod_recreated_under_its_name_is_another_pod() {
        let mut known = KnownPods::default();
        known.listed(vec![view("a", "1")]);
        let (changes, suspects) = known.listed(vec![view("a", "2")]);
        assert!(matches!(&changes[..], [Change::Seen(view)] if view.pod.uid.as_str() == "2"));
        assert_eq!(uids(&suspects), ["1"]);
    }

    #[test]
    fn what_is_remembered_is_suspected_until_it_is_seen_or_gone_and_counts_as_nothing_seen() {
        let mut known = KnownPods::default();
        known.remember([view("a", "1"), view("b", "2")]);
        assert_eq!(known.len(), 0);
        let (_, suspects) = known.listed(vec![view("b", "2")]);
        assert_eq!((known.len(), uids(&suspects)), (1, vec!["1"]));
        assert!(matches!(known.gone(&"1".into()), Some(Change::Removed(_))));
        let (_, suspects) = known.listed(vec![view("b", "2")]);
        assert!(suspects.is_empty());
    }

    #[test]
    fn a_deleted_event_removes_only_its_own_uid() {
        let mut known = KnownPods::default();
        known.listed(vec![view("a", "1"), view("a", "2")]);
        assert!(matches!(known.deleted(view("a", "1")), Change::Removed(_)));
        assert_eq!(known.len(), 1);
    }
}
