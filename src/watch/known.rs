//! The pods of this node as they were last seen, and how a list or an event differs from that. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use super::{Change, Kind};
use crate::{
    handover::guard::Census,
    model::pod::{PodRef, PodUid, PodView},
};

/// By UID: a pod recreated under the same name is another pod. Suspects are looked after in the order of their UIDs, so
/// that what happened once can be made to happen again.
#[derive(Debug, Default)]
pub struct KnownPods {
    pods: BTreeMap<PodUid, Known>,
    /// Those that an earlier run began to take down and that this one has not seen.
    remembered: BTreeMap<PodUid, Arc<PodView>>,
    /// Those that an earlier run saw live and that this one has not seen; until a list is believed.
    expected: BTreeSet<PodUid>,
}

#[derive(Debug)]
struct Known {
    pod: Kept,
    /// resourceVersion of the object: the same one means the same object.
    version: Box<str>,
}

/// What is kept of a pod.
#[derive(Debug, Clone)]
enum Kept {
    /// All but the object: that is large, and the worker has it.
    View(Arc<PodView>),
    /// It is terminal, and needs a worker only if something of it is on the node. A node may have thousands of these.
    Ended(Ended),
}

/// A terminal pod in a few bytes.
#[derive(Debug, Clone)]
pub struct Ended {
    pod: PodRef,
    /// `spec.terminationGracePeriodSeconds`.
    grace: Option<i64>,
}

// === impl Ended ===

impl Ended {
    /// What is kept of this pod, if it is one of these.
    pub fn of(view: &PodView) -> Option<Self> {
        view.may_be_idle().then(|| Self {
            pod: view.pod.clone(),
            grace: view.spec_grace,
        })
    }
}

// === impl Kept ===

impl Kept {
    fn of(view: &Arc<PodView>) -> Self {
        if let Some(ended) = Ended::of(view) {
            Self::Ended(ended)
        } else if view.object.is_some() {
            Self::View(Arc::new(view.without_object()))
        } else {
            Self::View(Arc::clone(view))
        }
    }

    fn view(&self) -> Arc<PodView> {
        match self {
            Self::View(view) => Arc::clone(view),
            Self::Ended(Ended { pod, grace }) => Arc::new(PodView::ended(pod.clone(), *grace)),
        }
    }

    fn uid(&self) -> &PodUid {
        match self {
            Self::View(view) => &view.pod.uid,
            Self::Ended(ended) => &ended.pod.uid,
        }
    }

    fn is_alive(&self) -> bool {
        matches!(self, Self::View(view) if !view.ends())
    }

    fn is_mirror(&self) -> bool {
        matches!(self, Self::View(view) if view.mirror)
    }
}

/// One pod of a list.
#[derive(Debug)]
pub enum Listed {
    /// Exactly as it is known.
    Same(PodUid),
    /// A terminal pod that may be idle, and its resourceVersion.
    Ended(Ended, Box<str>),
    /// Anything else, and its resourceVersion.
    New(Box<PodView>, Box<str>),
}

// === impl Listed ===

impl Listed {
    fn uid(&self) -> &PodUid {
        match self {
            Self::Same(uid) => uid,
            Self::Ended(ended, _) => &ended.pod.uid,
            Self::New(view, _) => &view.pod.uid,
        }
    }
}

// === impl KnownPods ===

impl KnownPods {
    /// Pods that an earlier run began to take down: suspects from the first list on.
    pub fn remember(&mut self, pods: impl IntoIterator<Item = PodView>) {
        let pods = pods.into_iter().map(|view| (view.pod.uid.clone(), Arc::new(view)));
        self.remembered.extend(pods);
    }

    /// Pods that an earlier run saw, with no reason to vanish.
    pub fn expect(&mut self, pods: impl IntoIterator<Item = PodUid>) {
        self.expected.extend(pods);
    }

    /// How many were seen and are not known to be gone.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether the pod was seen, or is remembered, and is not known to be gone.
    pub fn holds(&self, uid: &PodUid) -> bool {
        self.pods.contains_key(uid) || self.remembered.contains_key(uid)
    }

    /// Whether this is the object as it is known, to the letter.
    pub fn is_same(&self, uid: &PodUid, version: &str) -> bool {
        self.pods
            .get(uid)
            .is_some_and(|known| !version.is_empty() && *known.version == *version)
    }

    /// Pods that live by their objects, and do not stand for another one.
    pub fn of_the_api(&self) -> usize {
        self.pods.values().filter(|known| !known.pod.is_mirror()).count()
    }

    /// All that were seen, or are remembered, and are not known to be gone.
    pub fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.pods.keys().chain(self.remembered.keys())
    }

    /// What a list shows, and what it lacks of the pods that have no reason to vanish.
    pub fn census(&self, pods: &[Listed]) -> Census {
        let shown: HashSet<&PodUid> = pods.iter().map(Listed::uid).collect();
        let living = self.pods.iter().filter(|(_, known)| known.pod.is_alive());
        let living: BTreeSet<&PodUid> = living.map(|(uid, _)| uid).chain(&self.expected).collect();
        Census {
            listed: pods.len(),
            living: living.len(),
            vanished: living.into_iter().filter(|uid| !shown.contains(uid)).cloned().collect(),
            is_excused: self.pods.is_empty() && pods.len() * 2 >= self.expected.len(),
        }
    }

    /// A complete list: what it shows anew, in the kubelet's order, and what it lacks and is therefore suspected to be gone.
    /// Suspects stay known until [`Self::gone`] is told.
    pub fn listed(&mut self, pods: Vec<Listed>) -> (impl Iterator<Item = Change> + use<>, Vec<Arc<PodView>>) {
        let shown: HashSet<PodUid> = pods.iter().map(|listed| listed.uid().clone()).collect();
        let mut changes: Vec<(Kind, Kept)> = pods
            .into_iter()
            .filter_map(|listed| match listed {
                Listed::Same(_) => None,
                Listed::Ended(ended, version) => {
                    let now = Kept::Ended(ended);
                    let before = self.replace(now.clone(), version);
                    Some((kind(before.as_ref(), &now.view()), now))
                }
                Listed::New(view, version) => {
                    let Change { kind, view } = self.seen(*view, version);
                    Some((kind, Kept::View(view)))
                }
            })
            .collect();
        changes.sort_by_key(|(kind, _)| *kind);
        let changes = changes.into_iter().map(|(kind, pod)| Change { kind, view: pod.view() });
        let known = self.pods.iter().filter(|(uid, _)| !shown.contains(*uid));
        let known = known.map(|(_, known)| known.pod.view());
        let remembered = self.remembered.iter().filter(|(uid, _)| !shown.contains(*uid));
        let suspects = known.chain(remembered.map(|(_, view)| Arc::clone(view)));
        (changes, suspects.collect())
    }

    /// What was listed last is believed: whoever of an earlier run it did not show is expected no more, and told here.
    pub fn believe(&mut self) -> BTreeSet<PodUid> {
        std::mem::take(&mut self.expected)
    }

    /// An object as a list or an ADDED or MODIFIED event shows it.
    pub fn seen(&mut self, view: PodView, version: Box<str>) -> Change {
        let view = Arc::new(view);
        let before = self.replace(Kept::of(&view), version);
        Change {
            kind: kind(before.as_ref(), &view),
            view,
        }
    }

    fn replace(&mut self, pod: Kept, version: Box<str>) -> Option<Kept> {
        let uid = pod.uid().clone();
        self.remembered.remove(&uid);
        self.expected.remove(&uid);
        let before = self.pods.insert(uid, Known { pod, version });
        before.map(|known| known.pod)
    }

    /// A DELETED event, which carries the last state of the object.
    pub fn deleted(&mut self, view: PodView) -> Change {
        self.gone(&view.pod.uid);
        Change::removed(Arc::new(view))
    }

    /// A suspect is proven to be gone.
    pub fn gone(&mut self, uid: &PodUid) -> Option<Change> {
        self.expected.remove(uid);
        let remembered = self.remembered.remove(uid);
        let known = self.pods.remove(uid).map(|known| known.pod.view());
        known.or(remembered).map(Change::removed)
    }
}

fn kind(before: Option<&Kept>, now: &PodView) -> Kind {
    let is_alike = |before: &Kept| match before {
        Kept::View(before) => before.ends_like(now),
        Kept::Ended(_) => now.has_only_ended(),
    };
    match before {
        None => Kind::Add,
        Some(before) if is_alike(before) => Kind::Reconcile,
        Some(_) if now.deletion.is_some() => Kind::Delete,
        Some(_) => Kind::Update,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::pod::PodObject;

    fn view(name: &str, uid: &str) -> PodView {
        view_of(&json!({
            "metadata": { "name": name, "namespace": "ns", "uid": uid },
            "spec": { "containers": [{ "name": "main" }] },
        }))
    }

    fn view_of(pod: &Value) -> PodView {
        PodView::project(PodObject::from_value(pod).unwrap(), false)
    }

    fn new(name: &str, uid: &str) -> Listed {
        Listed::New(Box::new(view(name, uid)), "1".into())
    }

    fn listed(known: &mut KnownPods, pods: Vec<Listed>) -> (Vec<Change>, Vec<Arc<PodView>>) {
        let (changes, suspects) = known.listed(pods);
        (changes.collect(), suspects)
    }

    fn uids(pods: &[Arc<PodView>]) -> Vec<&str> {
        let mut uids: Vec<_> = pods.iter().map(|view| view.pod.uid.as_str()).collect();
        uids.sort_unstable();
        uids
    }

    #[test]
    fn a_list_names_as_suspects_what_it_lacks_and_keeps_them_until_they_are_proven_gone() {
        let mut known = KnownPods::default();
        listed(&mut known, vec![new("a", "1"), new("b", "2")]);
        let (changes, suspects) = listed(&mut known, vec![new("b", "2")]);
        assert_eq!((changes.len(), uids(&suspects)), (1, vec!["1"]));
        let (_, suspects) = listed(&mut known, vec![new("b", "2")]);
        assert_eq!(uids(&suspects), ["1"], "a suspicion that was not settled comes again");
        assert!(matches!(
            known.gone(&"1".into()),
            Some(Change { kind: Kind::Remove, .. })
        ));
        assert!(known.gone(&"1".into()).is_none());
    }

    #[test]
    fn a_pod_recreated_under_its_name_is_another_pod() {
        let mut known = KnownPods::default();
        listed(&mut known, vec![new("a", "1")]);
        let (changes, suspects) = listed(&mut known, vec![new("a", "2")]);
        assert!(matches!(&changes[..], [change] if change.view.pod.uid.as_str() == "2"));
        assert_eq!(uids(&suspects), ["1"]);
    }

    #[test]
    fn what_is_remembered_is_suspected_until_it_is_seen_or_gone_and_counts_as_nothing_seen() {
        let mut known = KnownPods::default();
        known.remember([view("a", "1"), view("b", "2")]);
        assert_eq!(known.len(), 0);
        let (_, suspects) = listed(&mut known, vec![new("b", "2")]);
        assert_eq!((known.len(), uids(&suspects)), (1, vec!["1"]));
        assert!(matches!(
            known.gone(&"1".into()),
            Some(Change { kind: Kind::Remove, .. })
        ));
        let (_, suspects) = listed(&mut known, vec![new("b", "2")]);
        assert!(suspects.is_empty());
    }

    #[test]
    fn only_what_has_no_reason_to_vanish_is_missed() {
        let mut known = KnownPods::default();
        known.expect(["0", "1", "5"].map(PodUid::from));
        known.remember([view("d", "4")]);
        let list = [new("a", "1")];
        let missed = |known: &KnownPods, list: &[Listed]| {
            let Census {
                living,
                vanished,
                is_excused,
                ..
            } = known.census(list);
            (living, Vec::from_iter(vanished), is_excused)
        };
        assert_eq!(missed(&known, &list), (3, vec!["0".into(), "5".into()], false));
        let others = [new("x", "8"), new("y", "9")];
        let (_, vanished, is_excused) = missed(&known, &others);
        assert!(vanished.len() == 3 && is_excused, "as many others have come meanwhile");
        listed(&mut known, list.into());
        known.believe();
        let mut ends = view("b", "2");
        ends.terminal_phase = true;
        known.seen(ends, "1".into());
        assert_eq!(
            missed(&known, &[]),
            (1, vec!["1".into()], false),
            "an earlier run counts until a list is believed"
        );
        assert_eq!(missed(&known, &[Listed::Same("1".into())]), (1, vec![], false));
    }

    #[test]
    fn what_an_earlier_run_saw_is_missed_until_it_is_shown_or_a_list_is_believed() {
        let mut known = KnownPods::default();
        known.expect(["1", "2", "3", "4"].map(PodUid::from));
        let list = || vec![new("a", "1"), new("x", "8"), new("y", "9")];
        let missed = |known: &KnownPods| known.census(&list()).vanished.len();
        for (is_believed, missing) in [(false, 3), (false, 3), (true, 0)] {
            assert_eq!(missed(&known), 3);
            listed(&mut known, list());
            if is_believed {
                assert_eq!(known.believe().len(), 3);
            }
            assert_eq!(missed(&known), missing);
        }
        known.expect(["2", "3", "4"].map(PodUid::from));
        known.seen(view("b", "2"), "1".into());
        known.deleted(view("b", "2"));
        known.gone(&"3".into());
        assert_eq!(missed(&known), 1);
    }

    #[test]
    fn a_deleted_event_removes_only_its_own_uid() {
        let mut known = KnownPods::default();
        listed(&mut known, vec![new("a", "1"), new("a", "2")]);
        assert!(matches!(
            known.deleted(view("a", "1")),
            Change { kind: Kind::Remove, .. }
        ));
        assert_eq!(known.len(), 1);
    }

    #[test]
    fn the_kind_of_a_change_is_the_kubelets() {
        let pod = |changed: &dyn Fn(&mut Value)| {
            let mut pod = json!({
                "metadata": { "name": "a", "namespace": "ns", "uid": "1" },
                "spec": { "containers": [{ "name": "main" }], "terminationGracePeriodSeconds": 30 },
            });
            changed(&mut pod);
            view_of(&pod)
        };
        let deleted = |grace: i64| {
            pod(&|pod| {
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                pod["metadata"]["deletionGracePeriodSeconds"] = grace.into();
            })
        };
        let mut known = KnownPods::default();
        let mut kind = |view| known.seen(view, "1".into()).kind;
        assert_eq!(kind(pod(&|_| ())), Kind::Add);
        assert_eq!(
            kind(pod(&|pod| pod["status"]["podIP"] = "10.0.0.1".into())),
            Kind::Reconcile
        );
        assert_eq!(
            kind(pod(&|pod| pod["spec"]["terminationGracePeriodSeconds"] = 5.into())),
            Kind::Update
        );
        assert_eq!(kind(deleted(30)), Kind::Delete);
        assert_eq!(kind(deleted(30)), Kind::Reconcile);
        assert_eq!(kind(deleted(1)), Kind::Delete);
    }

    #[test]
    fn a_list_tells_nothing_of_pods_that_are_as_they_were() {
        let mut known = KnownPods::default();
        listed(&mut known, vec![new("a", "1"), new("b", "2")]);
        assert!(
            known.is_same(&"1".into(), "1") && !known.is_same(&"1".into(), "2") && !known.is_same(&"3".into(), "1")
        );
        let (changes, suspects) = listed(&mut known, vec![Listed::Same("1".into())]);
        assert_eq!((changes.len(), uids(&suspects)), (0, vec!["2"]));
    }
}
