//! What of all that is there belongs to nobody any more, and what may be done about it. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    handover::guard::Unshown,
    model::pod::{PodRef, PodUid},
    watch::Roll,
    workers::traces::Traces,
};

/// So long something must have been there under the eyes of this agent: whoever makes it may not have told yet.
pub(super) const MIN_AGE: Duration = Duration::from_secs(120);
/// And so often.
const PASSES: u32 = 2;
/// Each time that something is there again after it was taken down, it is left for twice as long, but no longer than about
/// an hour.
const MOST_DOUBLINGS: u32 = 5;
/// As many pods are handed over in one pass: they are not urgent, and their volumes may be many.
const FEW: usize = 4;

/// All that a decision rests on.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Pods that the API server has shown here.
    pub seen: BTreeMap<PodUid, PodRef>,
    /// Pods that the journal knows to be ending.
    pub begun: BTreeMap<PodUid, PodRef>,
    /// The pods that the API server shows, taken after those.
    pub roll: Roll,
    /// The pods that workers are at, taken after that.
    pub at_work: BTreeSet<PodUid>,
    /// What is there, taken last.
    pub found: BTreeMap<PodUid, Traces>,
}

/// What has been seen so far of what belongs to no pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sightings(BTreeMap<PodUid, Sighting>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Sighting {
    since: Instant,
    passes: u32,
    /// How often it was handed over already.
    handed: u32,
}

/// What is left of a pod of the API server that is no longer known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leftover {
    pub pod: PodRef,
    pub traces: String,
}

/// What follows from the facts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Of these nothing is left: that they were seen need not be known any more.
    pub forget: Vec<PodUid>,
    /// To be taken down, if their objects are gone; those that have been there longest, few at a time.
    pub end: Vec<Leftover>,
    /// All that is left of pods of the API server, for people.
    pub leftovers: Vec<String>,
    /// What is left of nobody knows whom, for people.
    pub strangers: Vec<String>,
}

/// One pass.
pub(super) fn decide(mut before: Sightings, facts: &Facts, now: Instant) -> (Sightings, Verdict) {
    let (mut sightings, mut verdict) = (Sightings::default(), Verdict::default());
    let mut ripe = Vec::new();
    let nobodys = |uid: &PodUid| !facts.roll.pods.contains(uid) && !facts.at_work.contains(uid);
    // An entry of the journal that no worker has is something that is left, too.
    let found: BTreeSet<_> = facts.found.keys().chain(facts.begun.keys()).collect();
    let nothing = Traces::default();
    for uid in found.into_iter().filter(|uid| nobodys(uid)) {
        let traces = facts.found.get(uid).unwrap_or(&nothing);
        let sighting = before.0.remove(uid).map_or_else(|| Sighting::new(now), Sighting::again);
        match facts.proof(uid, traces) {
            Some(pod) => {
                let traces = facts.words(pod, traces);
                verdict.leftovers.push(format!("{pod} (UID {uid}): {traces}"));
                if sighting.is_ripe(now) {
                    let pod = pod.clone();
                    ripe.push((sighting.since, Leftover { pod, traces }));
                }
            }
            // What the runtime holds is told by whoever compares it with the API server.
            None if traces.runtime.is_some() => {}
            None if sighting.passes >= PASSES => verdict.strangers.push(format!("UID {uid}: {traces}")),
            None => {}
        }
        sightings.0.insert(uid.clone(), sighting);
    }
    ripe.sort_by_key(|(since, _)| *since);
    verdict.end = ripe.into_iter().take(FEW).map(|(_, leftover)| leftover).collect();
    let left = |uid: &&PodUid| facts.found.contains_key(*uid) || facts.begun.contains_key(*uid);
    let seen = facts.seen.keys().filter(|uid| nobodys(uid) && !left(uid));
    verdict.forget = seen.cloned().collect();
    (sightings, verdict)
}

// === impl Facts ===

impl Facts {
    /// The pod of the API server that had this UID, if there is proof of one and if anything of this is its own.
    fn proof<'a>(&'a self, uid: &PodUid, traces: &'a Traces) -> Option<&'a PodRef> {
        // A static pod may have the UID of a pod that was seen: its manifest was saved with it.
        if traces.runtime.as_ref().is_some_and(|sighted| sighted.from_elsewhere) {
            return None;
        }
        let sandbox = traces.runtime.as_ref().filter(|sighted| sighted.from_api);
        let by_sandbox = sandbox.filter(|_| self.roll.any_of_the_api).map(|sighted| &sighted.pod);
        let pod = self.begun.get(uid).or_else(|| self.seen.get(uid)).or(by_sandbox)?;
        let its_own = !traces.of(&pod.namespace, &pod.name).is_empty();
        (its_own || self.begun.contains_key(uid)).then_some(pod)
    }

    /// What the runtime holds by the word of an API server, but for those whose `end_was_seen`.
    pub fn unshown(&self, end_was_seen: impl Fn(&PodUid) -> bool) -> Unshown {
        let from_api = |traces: &Traces| traces.runtime.as_ref().is_some_and(|sighted| sighted.from_api);
        let pods = self.found.iter().filter(|(_, traces)| from_api(traces));
        let pods = pods.map(|(uid, _)| uid).filter(|uid| !end_was_seen(uid));
        let known = |uid| self.roll.pods.contains(uid) || self.at_work.contains(uid) || self.begun.contains_key(uid);
        Unshown::of(pods.map(|uid| (uid.clone(), self.roll.any_of_the_api && !known(uid))))
    }

    /// A pod of a kubelet that lives here and has no directory: those of others may be elsewhere, too.
    pub fn without_directory(&self) -> Option<&PodRef> {
        let mut living = self.found.values().filter(|traces| !traces.directory);
        living.find_map(|traces| {
            let sighted = traces.runtime.as_ref()?;
            let is_a_kubelets = sighted.from_api || sighted.from_elsewhere;
            (sighted.lives && is_a_kubelets).then_some(&sighted.pod)
        })
    }

    fn words(&self, pod: &PodRef, traces: &Traces) -> String {
        let traces = traces.of(&pod.namespace, &pod.name);
        if traces.is_empty() {
            "an entry of the journal".to_owned()
        } else {
            traces.to_string()
        }
    }
}

// === impl Sightings ===

impl Sightings {
    /// This was handed to the workers, or is a living pod's after all: it is observed anew, and for longer.
    pub fn handed_over(&mut self, uid: &PodUid, now: Instant) {
        if let Some(sighting) = self.0.get_mut(uid) {
            *sighting = Sighting {
                handed: sighting.handed + 1,
                ..Sighting::new(now)
            };
        }
    }
}

// === impl Sighting ===

impl Sighting {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            passes: 1,
            handed: 0,
        }
    }

    fn again(self) -> Self {
        Self {
            passes: self.passes.saturating_add(1),
            ..self
        }
    }

    fn is_ripe(&self, now: Instant) -> bool {
        let age = MIN_AGE * 2_u32.pow(self.handed.min(MOST_DOUBLINGS));
        self.passes >= PASSES && now.saturating_duration_since(self.since) >= age
    }
}

#[cfg(test)]
mod tests;
