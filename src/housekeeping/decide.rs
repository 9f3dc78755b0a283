//! Decides which artifacts on the node are leftovers, and which of them to remove. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    handover::guard::absence::UnlistedPods,
    model::pod::{PodRef, PodUid},
    watch::PodSnapshot,
    why::Why,
    workers::artifacts::{PodArtifacts, RuntimePodSummary},
};

/// Interval between two passes.
pub(super) const INTERVAL: Duration = Duration::from_secs(30);
/// How long artifacts must have been observed: the API server may not show a new pod yet.
pub(super) const MIN_AGE: Duration = Duration::from_secs(120);
/// In how many passes they must have been observed.
const MIN_PASSES: u32 = 2;
/// Limits the backoff of leftovers that reappear: it doubles each time, up to about an hour.
const MAX_DOUBLINGS: u32 = 5;
/// Pods to terminate in one pass, beside orphans. They are not urgent, and may have many volumes.
const MAX_PODS_PER_PASS: usize = 4;

/// The evidence of one pass.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Pods that the API server has shown here.
    pub seen: BTreeMap<PodUid, PodRef>,
    /// Pods that terminate according to the journal.
    pub begun: BTreeMap<PodUid, PodRef>,
    /// The known pods, read after those two.
    pub snapshot: PodSnapshot,
    /// The pods that have a worker, read after that.
    pub with_worker: BTreeSet<PodUid>,
    /// Artifacts on the node, read last.
    pub found: BTreeMap<PodUid, PodArtifacts>,
    /// Why the disk could not be read. `found` has only what the runtime shows then, and does not prove what there is not.
    pub unread: Option<Why>,
}

/// Observations of artifacts without a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Observations(BTreeMap<PodUid, Observation>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Observation {
    since: Instant,
    passes: u32,
    /// How often it was sent to the workers.
    attempts: u32,
}

/// Artifacts of a pod of the API server that is no longer known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leftover {
    pub pod: PodRef,
    pub artifacts: String,
}

/// The decisions of a pass.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Seen pods without artifacts: the journal may forget them.
    pub forget: Vec<PodUid>,
    /// Pods to terminate if their objects are deleted: all orphans, and the oldest few of the others.
    pub terminate: Vec<Leftover>,
    /// All leftovers of pods of the API server, for people.
    pub leftovers: Vec<String>,
    /// Artifacts of unmanaged pods, for people.
    pub unmanaged: Vec<String>,
}

/// Evaluates one pass.
pub(super) fn decide(mut before: Observations, facts: &Facts, now: Instant) -> (Observations, Verdict) {
    let (mut observations, mut verdict) = (Observations::default(), Verdict::default());
    let mut due = Vec::new();
    let has_no_pod = |uid: &PodUid| !facts.snapshot.pods.contains(uid) && !facts.with_worker.contains(uid);
    // An entry of the journal without a worker is a leftover, too.
    let found: BTreeSet<_> = facts.found.keys().chain(facts.begun.keys()).collect();
    let nothing = PodArtifacts::default();
    for uid in found.into_iter().filter(|uid| has_no_pod(uid)) {
        let found = facts.found.get(uid).unwrap_or(&nothing);
        let observation = before.0.remove(uid);
        let observation = observation.map_or_else(|| Observation::new(now), Observation::again);
        match facts.proven_pod(uid, found) {
            Some(pod) => {
                let artifacts = facts.describe(pod, found);
                verdict.leftovers.push(format!("{pod} (UID {uid}): {artifacts}"));
                let is_orphan = found.runtime.as_ref().is_some_and(|sighted| sighted.from_api);
                if observation.is_due(now, is_orphan) {
                    let pod = pod.clone();
                    due.push((!is_orphan, observation.since, Leftover { pod, artifacts }));
                }
            }
            None => match &found.runtime {
                Some(RuntimePodSummary { pod, .. }) => {
                    verdict.unmanaged.push(format!("{pod} (UID {uid}): {found}"));
                }
                None if observation.passes >= MIN_PASSES => verdict.unmanaged.push(format!("UID {uid}: {found}")),
                None => {}
            },
        }
        observations.0.insert(uid.clone(), observation);
    }
    due.sort_by_key(|(waits, since, _)| (*waits, *since));
    let orphans = due.iter().filter(|(waits, ..)| !waits).count();
    let due = due.into_iter().take(orphans + MAX_PODS_PER_PASS);
    verdict.terminate = due.map(|(.., leftover)| leftover).collect();
    if facts.unread.is_some() {
        observations.0.extend(before.0);
        return (observations, verdict);
    }
    let left = |uid: &&PodUid| facts.found.contains_key(*uid) || facts.begun.contains_key(*uid);
    let seen = facts.seen.keys().filter(|uid| has_no_pod(uid) && !left(uid));
    verdict.forget = seen.cloned().collect();
    (observations, verdict)
}

// === impl Facts ===

impl Facts {
    /// The pod of the API server with this UID, if there is proof of it and some of the artifacts are its own.
    fn proven_pod<'a>(&'a self, uid: &PodUid, artifacts: &'a PodArtifacts) -> Option<&'a PodRef> {
        // A static pod may have the UID of a pod that was seen, if its manifest was exported with the UID.
        if artifacts.runtime.as_ref().is_some_and(|sighted| sighted.is_static) {
            return None;
        }
        let is_proof = |sighted: &&RuntimePodSummary| sighted.from_api && self.snapshot.has_api_pods;
        let by_sandbox = artifacts.runtime.as_ref().filter(is_proof).map(|sighted| &sighted.pod);
        let pod = self.begun.get(uid).or_else(|| self.seen.get(uid)).or(by_sandbox)?;
        let its_own = !artifacts.of(&pod.namespace, &pod.name).is_empty();
        (its_own || self.begun.contains_key(uid)).then_some(pod)
    }

    /// Pods of an API server in the runtime, except those for which `end_was_seen`.
    pub fn unlisted(&self, end_was_seen: impl Fn(&PodUid) -> bool) -> UnlistedPods {
        let mut unlisted = UnlistedPods::default();
        for (uid, PodArtifacts { runtime, .. }) in &self.found {
            if runtime.as_ref().is_none_or(|sighted| !sighted.from_api) || end_was_seen(uid) {
                continue;
            }
            unlisted.runtime_pods += 1;
            let (snapshot, with_worker) = (&self.snapshot, &self.with_worker);
            let is_known = snapshot.pods.contains(uid) || with_worker.contains(uid) || self.begun.contains_key(uid);
            if !is_known && (snapshot.has_api_pods || self.seen.contains_key(uid)) {
                unlisted.uids.insert(uid.clone());
            }
        }
        unlisted
    }

    /// A running pod of a kubelet that has no directory. If there is one, the kubelet's root directory may be wrong.
    pub fn without_directory(&self) -> Option<&PodRef> {
        let mut running = self.found.values().filter(|artifacts| !artifacts.directory);
        running.find_map(|artifacts| {
            let sighted = artifacts.runtime.as_ref()?;
            let is_a_kubelets = sighted.from_api || sighted.is_static;
            (sighted.has_ready_sandbox && is_a_kubelets).then_some(&sighted.pod)
        })
    }

    fn describe(&self, pod: &PodRef, artifacts: &PodArtifacts) -> String {
        let artifacts = artifacts.of(&pod.namespace, &pod.name);
        match artifacts.is_empty() {
            true => "an entry of the journal".to_owned(),
            false => artifacts.to_string(),
        }
    }
}

// === impl Observations ===

impl Observations {
    /// Restarts the observation with a longer period: the pod was sent to the workers, or its object exists.
    pub fn restart(&mut self, uid: &PodUid, now: Instant) {
        if let Some(observation) = self.0.get_mut(uid) {
            *observation = Observation {
                attempts: observation.attempts + 1,
                ..Observation::new(now)
            };
        }
    }
}

// === impl Observation ===

impl Observation {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            passes: 1,
            attempts: 0,
        }
    }

    fn again(self) -> Self {
        Self {
            passes: self.passes.saturating_add(1),
            ..self
        }
    }

    /// An orphan, whose containers may run, is due at once.
    fn is_due(&self, now: Instant, is_orphan: bool) -> bool {
        if is_orphan && self.attempts == 0 {
            return true;
        }
        let age = MIN_AGE * 2_u32.pow(self.attempts.min(MAX_DOUBLINGS));
        self.passes >= MIN_PASSES && now.saturating_duration_since(self.since) >= age
    }
}

#[cfg(test)]
mod tests;
