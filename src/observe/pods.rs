//! One pod whose termination is observed. Pure but for the clock.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::time::Instant;

use super::{fields, leftovers::Left, seen::SeenRuntime, volumes::StagedVolume};
use crate::{
    model::{
        observation::{Difference, Observation, Verdict},
        pod::{ApiObject, PodObject, PodView, container_statuses, is_running},
        termination::{Cause, Eviction},
        trace::{BlockedReason, Obstacle},
    },
    teardown::{
        grace,
        status::{self, DEADLINE_EXCEEDED, DISRUPTION_TARGET, StatusInput, StatusStage},
    },
    trace_recorder::TraceRecorder,
};

/// How long a kubelet has to remove the rest of a pod. Its container garbage collection pauses for a minute after each run, and a run
/// that removes a hundred sandboxes takes a minute. See docs/explanation/kubelet-differences.md.
pub(super) const PATIENCE: Duration = Duration::from_secs(180);
/// Time for the last status of a pod that terminated by itself.
pub(super) const SETTLE: Duration = Duration::from_secs(5);
/// Delay of a check until the status of an exited container is read.
const READING_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of the checks of the node.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Why a termination is not compared.
pub(super) const BEGAN_BEFORE: &str = "the termination had begun before the agent saw it";
pub(super) const LAST_UNSEEN: &str = "the watch was down when the object was deleted: its last status was not seen";
const STILL_RUNNING: &str = "the kubelet has not shown how its containers ended";
const TOO_LARGE: &str = "the object is too large to be kept";

/// A pod whose termination is observed.
pub(super) struct ObservedPod {
    pub view: Arc<PodView>,
    pub recorder: Arc<TraceRecorder>,
    pub seen: SeenRuntime,
    /// Why the agent would have waited for an approval.
    pub holds: Vec<String>,
    /// Its volumes that were staged when the termination began.
    pub staged: Vec<StagedVolume>,
    /// The object before the kubelet's last status.
    before: Option<Arc<PodObject>>,
    /// The object with the kubelet's last status.
    last: Option<Arc<PodObject>>,
    unseen: Option<String>,
    /// Its object was deleted before anything else was seen.
    was_removed: bool,
    deleted_at: Option<Timestamp>,
    began: Instant,
    grace: Duration,
    end: Option<End>,
}

/// The kubelet is done.
struct End {
    at: Instant,
    wall: Timestamp,
    is_deleted: bool,
    next_check: Option<Instant>,
    last_check: Instant,
}

// === impl ObservedPod ===

impl ObservedPod {
    /// A termination that begins now. `known`: the pod before, if it was seen.
    pub fn begin(view: Arc<PodView>, cause: Cause, known: Option<&PodView>, now: Timestamp) -> Self {
        let grace = grace::of_pod(None, &view, None);
        let began = Instant::now();
        let recorder = TraceRecorder::new(view.pod.clone(), cause, grace, None);
        let why = "the agent only observes how the kubelet terminates it";
        recorder.set_blocked(vec![Obstacle::pod(BlockedReason::Guard, why)]);
        let was_removed = cause == Cause::Removed;
        let earlier = || known.and_then(|known| known.object.last_known().cloned());
        // A status that is already terminal is the kubelet's last one.
        let before = if view.terminal_phase {
            earlier()
        } else {
            view.object.last_known().cloned()
        };
        let unseen = match (&before, known) {
            _ if was_removed && view.object.last_known().is_some() => None,
            (_, Some(known)) if was_removed && matches!(known.object, ApiObject::Unread) => Some(TOO_LARGE),
            _ if was_removed => Some(LAST_UNSEEN),
            (_, None) => Some(BEGAN_BEFORE),
            (None, Some(_)) => Some(TOO_LARGE),
            (Some(_), Some(_)) => None,
        };
        Self {
            recorder: Arc::new(recorder),
            seen: SeenRuntime::default(),
            holds: Vec::new(),
            staged: Vec::new(),
            before,
            last: view.object.last_known().cloned(),
            unseen: unseen.map(str::to_owned),
            was_removed,
            deleted_at: (cause != Cause::PhaseTerminal).then_some(now),
            began,
            grace,
            end: None,
            view,
        }
    }

    /// Applies an update of the object.
    pub fn update(&mut self, view: Arc<PodView>, now: Timestamp) {
        if !view.terminal_phase && self.end.is_none() {
            self.grace = grace::of_pod(Some(self.grace), &view, None);
            self.recorder.set_grace(self.grace, None);
        }
        if view.deletion.is_some() && self.end.is_none() {
            self.deleted_at.get_or_insert(now);
        }
        self.last = view.object.last_known().cloned();
        self.recorder.set_terminal_state(&view);
        self.view = view;
    }

    /// The object is deleted. `is_seen`: an event showed its last state.
    pub fn removed(&mut self, is_seen: bool, now: Timestamp) {
        if !is_seen && !self.was_removed {
            self.unseen.get_or_insert_with(|| LAST_UNSEEN.to_owned());
        }
        self.end(true, now);
    }

    /// The kubelet is done. A pod that is deleted during its checks is checked for its whole patience again.
    pub fn end(&mut self, is_deleted: bool, now: Timestamp) {
        let (at, is_forced) = (Instant::now(), self.is_forced());
        // An object that was deleted at once says nothing about the processes.
        let patience = if is_forced { self.grace + PATIENCE } else { PATIENCE };
        let first = if is_deleted { at } else { at + SETTLE };
        match &mut self.end {
            Some(end) if end.is_deleted || !is_deleted => {}
            Some(end) => {
                end.is_deleted = true;
                end.last_check = at + patience;
                // A check in progress is followed by another one.
                end.next_check = Some(at);
            }
            None => {
                self.end = Some(End {
                    at,
                    wall: now,
                    is_deleted,
                    next_check: Some(first),
                    last_check: at + patience,
                });
            }
        }
    }

    /// Whether the kubelet is not done yet.
    pub fn is_terminating(&self) -> bool {
        self.end.is_none()
    }

    /// Whether the kubelet is done by what the object shows: a terminal pod that is not deleted, or that only finalizers keep.
    pub fn is_done(&self) -> bool {
        let deletion = self.view.deletion;
        self.view.terminal_phase && deletion.is_none_or(|deletion| deletion.grace == Some(0))
    }

    /// When the node has to be checked.
    pub fn next_check(&self) -> Option<Instant> {
        self.end.as_ref()?.next_check
    }

    /// A check has begun.
    pub fn check_begins(&mut self) {
        if let Some(end) = &mut self.end {
            end.next_check = None;
        }
    }

    /// Whether the object is deleted.
    pub fn is_deleted(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.is_deleted)
    }

    /// The observation after a check that found this; `None` if another check follows.
    pub fn conclude(&mut self, left: Left, runtime_name: &str, now: Timestamp) -> Option<Observation> {
        let is_forced = self.is_forced();
        // A kubelet reports the phase of an evicted pod before it stops the containers.
        let status_is_due = !is_forced && !self.is_deleted() && self.shows_running();
        let end = self.end.as_mut()?;
        // The object was deleted during the check.
        if end.next_check.is_some() {
            return None;
        }
        if (status_is_due || self.seen.is_reading()) && Instant::now() < end.last_check {
            end.next_check = Some(Instant::now() + READING_INTERVAL);
            return None;
        }
        let is_clean = left.leftovers.is_empty() && left.unknown.is_empty();
        if !is_clean && Instant::now() < end.last_check {
            end.next_check = Some(Instant::now() + CHECK_INTERVAL);
            return None;
        }
        // Without a graceful deletion, the kubelet is done when nothing is left.
        let (at, finished_at) = if is_forced {
            (Instant::now(), now)
        } else {
            (end.at, end.wall)
        };
        let elapsed = at.saturating_duration_since(self.began);
        Some(Observation {
            elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            ..self.judge(left, runtime_name, finished_at)
        })
    }

    /// What is known if the agent exits now.
    pub fn unfinished(&self, now: Timestamp) -> Observation {
        Observation {
            reason: Some("the agent exited during the termination".to_owned()),
            ..self.observation(now)
        }
    }

    /// Whether the object was deleted without a graceful deletion: no last status is due.
    fn is_forced(&self) -> bool {
        let is_at_once = self.view.deletion.is_some_and(|deletion| deletion.grace == Some(0));
        self.was_removed || is_at_once && !self.view.terminal_phase
    }

    /// Whether the last status shows a running container.
    fn shows_running(&self) -> bool {
        let status = self.last.as_ref().and_then(|last| last.pod.status.as_ref());
        status.is_some_and(|status| container_statuses(status).any(is_running))
    }

    /// Compares the statuses. What was not seen makes the verdict unknown, and a status that was not seen completely shows no difference.
    fn judge(&self, left: Left, runtime_name: &str, now: Timestamp) -> Observation {
        let mut differences: Vec<_> = self.holds.iter().map(|why| hold(why)).collect();
        let mut unseen = self.unseen.clone();
        // Without a graceful deletion no last status is due.
        if !self.is_forced() {
            let last = self.last.as_ref().and_then(|last| last.pod.status.as_ref());
            let shown = self.before.as_ref().and_then(|before| before.pod.status.as_ref());
            unseen = unseen.or_else(|| self.seen.unseen_exit(shown));
            // Without a graceful deletion, the API server may delete a terminal pod before the kubelet shows what it has stopped.
            if self.deleted_at.is_none() && self.shows_running() {
                unseen.get_or_insert_with(|| STILL_RUNNING.to_owned());
            }
            match (&self.before, last) {
                (Some(before), Some(kubelet)) if unseen.is_none() => {
                    let agent = self.expected_status(before, kubelet, runtime_name, now);
                    differences.extend(fields::differences(kubelet, &agent));
                }
                (Some(_), Some(_)) => {}
                _ => drop(unseen.get_or_insert_with(|| TOO_LARGE.to_owned())),
            }
        }
        let unread = left.unknown.first();
        let unread = unread.map(|what| format!("whether anything is left on the node: could not read {what}"));
        let mut observation = Observation {
            differences,
            leftovers: left.leftovers,
            reason: unseen.or(unread),
            ..self.observation(now)
        };
        observation.verdict = verdict(&observation);
        observation
    }

    /// The status after the last step of a teardown, by the function that the teardown uses. As a teardown, it is built on the status
    /// that was sent when the containers were stopped, unless that one waits for attached volumes.
    fn expected_status(
        &self,
        before: &PodObject,
        kubelet: &PodStatus,
        runtime_name: &str,
        now: Timestamp,
    ) -> PodStatus {
        let eviction = eviction_of(before, kubelet);
        let generate = |pod: &Pod, stage| {
            status::generate(&StatusInput {
                pod,
                observed: self.seen.pod(),
                runtime_name,
                now,
                stage,
                eviction: eviction.as_ref(),
                messages: self.seen.messages(),
            })
        };
        let mut pod = before.pod.clone();
        if !self.view.attachable_volumes {
            pod.status = Some(generate(&pod, StatusStage::Stopped));
        }
        generate(&pod, StatusStage::Terminated)
    }

    /// What is known of the termination, apart from its comparison. It took until `finished_at`.
    fn observation(&self, finished_at: Timestamp) -> Observation {
        let pod = &self.view.pod;
        Observation {
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            uid: pod.uid.to_string(),
            deleted_at: self.deleted_at,
            finished_at,
            grace_seconds: self.grace.as_secs(),
            elapsed_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            ..Observation::default()
        }
    }
}

/// What a safety hold would have changed.
fn hold(why: &str) -> Difference {
    Difference {
        field: "hold".to_owned(),
        kubelet: Some("terminated the pod".to_owned()),
        agent: Some(why.to_owned()),
        documented: None,
    }
}

/// A leftover is a fact, whatever else is unknown.
fn verdict(observation: &Observation) -> Verdict {
    if !observation.leftovers.is_empty() {
        Verdict::Leftovers
    } else if observation.reason.is_some() {
        Verdict::Unknown
    } else if !observation.differences.is_empty() {
        Verdict::Different
    } else {
        Verdict::Same
    }
}

/// The eviction that the kubelet's last status shows. The agent evicts a pod only on request, with this reason and message.
fn eviction_of(before: &PodObject, last: &PodStatus) -> Option<Eviction> {
    let reason = last.reason.as_ref().filter(|it| !it.is_empty())?;
    let before = before.pod.status.as_ref().and_then(|status| status.reason.as_ref());
    if last.phase.as_deref() != Some("Failed") || reason == DEADLINE_EXCEEDED || before == Some(reason) {
        return None;
    }
    let mut conditions = last.conditions.iter().flatten();
    let disruption = conditions.find(|it| it.type_ == DISRUPTION_TARGET);
    Some(Eviction {
        reason: reason.clone(),
        message: last.message.clone().unwrap_or_default(),
        disruption: disruption.and_then(|it| it.message.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        observation::{Leftover, LeftoverKind},
        pod::PodRef,
    };

    #[test]
    fn leftovers_count_before_unknown_and_unknown_before_differences() {
        let view = PodView::identity_only(PodRef {
            uid: "u".into(),
            namespace: "ns".into(),
            name: "n".into(),
        });
        let pod = ObservedPod::begin(Arc::new(view), Cause::Deleted, None, Timestamp::UNIX_EPOCH);
        let mut observation = Observation {
            reason: None,
            ..pod.observation(Timestamp::UNIX_EPOCH)
        };
        assert_eq!(verdict(&observation), Verdict::Same);
        observation.differences.push(hold("blocked"));
        assert_eq!(verdict(&observation), Verdict::Different);
        observation.reason = Some("the watch was down".to_owned());
        assert_eq!(verdict(&observation), Verdict::Unknown);
        observation.leftovers.push(Leftover::new(LeftoverKind::Mount, "/a", ""));
        assert_eq!(verdict(&observation), Verdict::Leftovers);
    }
}
