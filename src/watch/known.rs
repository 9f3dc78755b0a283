//! The known pods of this node, and how a list or an event differs from them. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use crate::{
    handover::guard::absence::ListComparison,
    model::pod::{PodUid, PodView},
};

/// The known pods by UID: a pod recreated under the same name is another pod. The order of UIDs makes runs reproducible.
#[derive(Debug, Default)]
pub struct KnownPods {
    pods: BTreeMap<PodUid, KnownPod>,
    /// Pods whose termination an earlier run has begun, and that this run has not seen.
    remembered: BTreeMap<PodUid, Arc<PodView>>,
    /// Pods that were not terminating in an earlier run and that this run has not seen. Cleared when a list is accepted.
    expected: BTreeSet<PodUid>,
}

#[derive(Debug)]
struct KnownPod {
    /// All but the object, which is large and known to the worker. Of a pod that needs a worker only if something of it is on the
    /// node, an outline: there may be thousands.
    view: Arc<PodView>,
    /// resourceVersion of the object.
    version: Box<str>,
}

/// The known pods of this node at one moment, for the search for leftovers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSnapshot {
    /// Pods that are known, or remembered from an earlier run, and not deleted; unreadable ones, too.
    pub pods: BTreeSet<PodUid>,
    /// Whether any of them is no mirror pod. A node without any pod in the API may have joined another cluster.
    pub has_api_pods: bool,
}

/// One pod in a list.
#[derive(Debug)]
pub enum ListedPod {
    /// Known with this resourceVersion.
    Unchanged(PodUid),
    /// Any other pod, and its resourceVersion.
    New(Box<PodView>, Box<str>),
}

// === impl ListedPod ===

impl ListedPod {
    fn uid(&self) -> &PodUid {
        match self {
            Self::Unchanged(uid) => uid,
            Self::New(view, _) => &view.pod.uid,
        }
    }
}

// === impl KnownPods ===

impl KnownPods {
    /// Adds pods whose termination an earlier run has begun. A list that lacks them makes them suspects.
    pub fn add_unfinished(&mut self, pods: impl IntoIterator<Item = PodView>) {
        let pods = pods.into_iter().map(|view| (view.pod.uid.clone(), Arc::new(view)));
        self.remembered.extend(pods);
    }

    /// Adds pods that were not terminating in an earlier run.
    pub fn add_expected(&mut self, pods: impl IntoIterator<Item = PodUid>) {
        self.expected.extend(pods);
    }

    /// Number of pods that this run has seen and that are not deleted.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether the pod is known with this resourceVersion.
    pub fn is_unchanged(&self, uid: &PodUid, version: &str) -> bool {
        let known = self.pods.get(uid).filter(|_| !version.is_empty());
        known.is_some_and(|known| *known.version == *version)
    }

    /// All pods that are not deleted, with these that cannot be read.
    pub fn snapshot(&self, unreadable: &HashSet<String>) -> PodSnapshot {
        let known = self.pods.keys().chain(self.remembered.keys()).cloned();
        PodSnapshot {
            pods: known.chain(unreadable.iter().map(|uid| uid.as_str().into())).collect(),
            has_api_pods: self.pods.values().any(|known| !known.view.mirror),
        }
    }

    /// Compares a list with the known pods that were not terminating.
    pub fn compare(&self, pods: &[ListedPod]) -> ListComparison {
        let shown: HashSet<&PodUid> = pods.iter().map(ListedPod::uid).collect();
        let alive = self.pods.iter().filter(|(_, known)| !known.view.must_terminate());
        let alive: BTreeSet<&PodUid> = alive.map(|(uid, _)| uid).chain(&self.expected).collect();
        ListComparison {
            listed: pods.len(),
            alive: alive.len(),
            missing: alive.into_iter().filter(|uid| !shown.contains(uid)).cloned().collect(),
            needs_no_approval: self.pods.is_empty() && pods.len() * 2 >= self.expected.len(),
        }
    }

    /// Applies a complete list. Returns its pods that have changed, and the suspects: known pods that it lacks. Suspects stay known
    /// until [`Self::remove`].
    pub fn apply_list(&mut self, pods: Vec<ListedPod>) -> (Vec<Arc<PodView>>, Vec<Arc<PodView>>) {
        let shown: HashSet<PodUid> = pods.iter().map(|listed| listed.uid().clone()).collect();
        let changed = pods.into_iter().filter_map(|listed| match listed {
            ListedPod::Unchanged(_) => None,
            ListedPod::New(view, version) => Some(self.apply_object(*view, version)),
        });
        let changed = changed.collect();
        let known = self.pods.iter().map(|(uid, known)| (uid, &known.view));
        let suspects = known.chain(&self.remembered).filter(|(uid, _)| !shown.contains(*uid));
        (changed, suspects.map(|(_, view)| Arc::clone(view)).collect())
    }

    /// Accepts the last list. Returns the pods of an earlier run that it lacks; they are no longer expected.
    pub fn accept_list(&mut self) -> BTreeSet<PodUid> {
        std::mem::take(&mut self.expected)
    }

    /// Applies an object of a list, or of an ADDED or MODIFIED event.
    pub fn apply_object(&mut self, view: PodView, version: Box<str>) -> Arc<PodView> {
        let view = Arc::new(view);
        let uid = view.pod.uid.clone();
        let stored = if view.may_be_idle() {
            Arc::new(view.outline())
        } else if view.object.last_known().is_some() {
            Arc::new(view.without_object())
        } else {
            Arc::clone(&view)
        };
        self.remembered.remove(&uid);
        self.expected.remove(&uid);
        self.pods.insert(uid, KnownPod { view: stored, version });
        view
    }

    /// Applies a DELETED event with the last state of the object.
    pub fn apply_deletion(&mut self, view: &PodView) -> Arc<PodView> {
        self.remove(&view.pod.uid);
        Arc::new(view.gone())
    }

    /// Removes a pod whose object is proven to be deleted, and returns it as gone.
    pub fn remove(&mut self, uid: &PodUid) -> Option<Arc<PodView>> {
        self.expected.remove(uid);
        let remembered = self.remembered.remove(uid);
        let known = self.pods.remove(uid).map(|known| known.view);
        known.or(remembered).map(|view| Arc::new(view.gone()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::pod::PodObject;

    fn view(name: &str, uid: &str) -> PodView {
        let pod = json!({
            "metadata": { "name": name, "namespace": "ns", "uid": uid },
            "spec": { "containers": [{ "name": "main" }] },
        });
        PodView::project(PodObject::from_value(&pod).unwrap(), false)
    }

    fn new(name: &str, uid: &str) -> ListedPod {
        ListedPod::New(Box::new(view(name, uid)), "1".into())
    }

    fn uids(pods: &[Arc<PodView>]) -> Vec<&str> {
        let mut uids: Vec<_> = pods.iter().map(|view| view.pod.uid.as_str()).collect();
        uids.sort_unstable();
        uids
    }

    #[test]
    fn pods_that_a_list_lacks_stay_suspects_until_proven_deleted() {
        let mut known = KnownPods::default();
        known.apply_list(vec![new("a", "1"), new("b", "2")]);
        let (changes, suspects) = known.apply_list(vec![new("b", "2")]);
        assert_eq!((changes.len(), uids(&suspects)), (1, vec!["1"]));
        let (_, suspects) = known.apply_list(vec![new("b", "2")]);
        assert_eq!(uids(&suspects), ["1"], "an unresolved suspect is returned again");
        assert!(known.remove(&"1".into()).unwrap().object.is_absent());
        assert!(known.remove(&"1".into()).is_none());
    }

    #[test]
    fn pod_recreated_under_its_name_is_another_pod() {
        let mut known = KnownPods::default();
        known.apply_list(vec![new("a", "1")]);
        let (changes, suspects) = known.apply_list(vec![new("a", "2")]);
        assert!(matches!(&changes[..], [view] if view.pod.uid.as_str() == "2"));
        assert_eq!(uids(&suspects), ["1"]);
    }

    #[test]
    fn remembered_pod_is_a_suspect_until_it_is_seen_or_deleted() {
        let mut known = KnownPods::default();
        known.add_unfinished([view("a", "1"), view("b", "2")]);
        assert_eq!(known.len(), 0);
        let (_, suspects) = known.apply_list(vec![new("b", "2")]);
        assert_eq!((known.len(), uids(&suspects)), (1, vec!["1"]));
        assert!(known.remove(&"1".into()).unwrap().object.is_absent());
        let (_, suspects) = known.apply_list(vec![new("b", "2")]);
        assert!(suspects.is_empty());
    }

    #[test]
    fn only_pods_that_were_not_terminating_count_as_missing() {
        let mut known = KnownPods::default();
        known.add_expected(["0", "1", "5"].map(PodUid::from));
        known.add_unfinished([view("d", "4")]);
        let list = [new("a", "1")];
        let missed = |known: &KnownPods, list: &[ListedPod]| {
            let ListComparison {
                alive,
                missing,
                needs_no_approval,
                ..
            } = known.compare(list);
            (alive, Vec::from_iter(missing), needs_no_approval)
        };
        assert_eq!(missed(&known, &list), (3, vec!["0".into(), "5".into()], false));
        let others = [new("x", "8"), new("y", "9")];
        let (_, missing, needs_no_approval) = missed(&known, &others);
        assert!(
            missing.len() == 3 && needs_no_approval,
            "as many other pods have appeared"
        );
        known.apply_list(list.into());
        known.accept_list();
        let mut ends = view("b", "2");
        ends.terminal_phase = true;
        known.apply_object(ends, "1".into());
        assert_eq!(
            missed(&known, &[]),
            (1, vec!["1".into()], false),
            "pods of an earlier run count until a list is accepted"
        );
        assert_eq!(missed(&known, &[ListedPod::Unchanged("1".into())]), (1, vec![], false));
    }

    #[test]
    fn pod_of_an_earlier_run_is_missing_until_it_is_listed_or_a_list_is_accepted() {
        let mut known = KnownPods::default();
        known.add_expected(["1", "2", "3", "4"].map(PodUid::from));
        let list = || vec![new("a", "1"), new("x", "8"), new("y", "9")];
        let missed = |known: &KnownPods| known.compare(&list()).missing.len();
        for (is_believed, missing) in [(false, 3), (false, 3), (true, 0)] {
            assert_eq!(missed(&known), 3);
            known.apply_list(list());
            if is_believed {
                assert_eq!(known.accept_list().len(), 3);
            }
            assert_eq!(missed(&known), missing);
        }
        known.add_expected(["2", "3", "4"].map(PodUid::from));
        known.apply_object(view("b", "2"), "1".into());
        known.apply_deletion(&view("b", "2"));
        known.remove(&"3".into());
        assert_eq!(missed(&known), 1);
    }

    #[test]
    fn deleted_event_removes_only_its_uid() {
        let mut known = KnownPods::default();
        known.apply_list(vec![new("a", "1"), new("a", "2")]);
        assert!(known.apply_deletion(&view("a", "1")).object.is_absent());
        assert_eq!(known.len(), 1);
    }

    #[test]
    fn unchanged_pods_of_a_list_yield_no_change() {
        let mut known = KnownPods::default();
        known.apply_list(vec![new("a", "1"), new("b", "2")]);
        assert!(
            known.is_unchanged(&"1".into(), "1")
                && !known.is_unchanged(&"1".into(), "2")
                && !known.is_unchanged(&"3".into(), "1")
        );
        let (changes, suspects) = known.apply_list(vec![ListedPod::Unchanged("1".into())]);
        assert_eq!((changes.len(), uids(&suspects)), (0, vec!["2"]));
    }
}
