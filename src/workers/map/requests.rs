//! Answers requests from the map.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{PodState, PodWorkers, Terminating, WorkerState};
use crate::{
    model::{
        event::Reason,
        mismatch::{Mismatch, MismatchApproval},
        pod::{PodUid, PodView},
        termination::Cause,
        trace::{Stage, Trace},
    },
    node::effects::Gate as _,
    object_name::ObjectName,
    teardown::grace,
    trace_recorder::TraceRecorder,
    workers::{
        KnownPod, Overview, PodRequests,
        stop::{PodStop, StopAccepted, StopRejected},
    },
};

// === impl PodWorkers ===

impl PodRequests for PodWorkers {
    fn stop_pod(&mut self, stop: PodStop) -> Result<StopAccepted, StopRejected> {
        if self.context.stopping.is_cancelled() {
            return Err(StopRejected::Stopping(stop.pod()));
        }
        if let Err(blocked) = self.guard.check_new() {
            return Err(stop.rejected(blocked.to_string(), blocked.is_kubelet()));
        }
        let known: Vec<_> = self.pods.values().filter_map(PodState::view).collect();
        let meant = stop.resolve(known.iter().map(|view| &**view))?;
        let (namespace, name) = (meant.pod.namespace.to_string(), meant.pod.name.to_string());
        let uid = meant.pod.uid.clone();
        if self.context.journal.is_canceled(&uid) {
            let why = "an earlier request is being canceled, because a kubelet came; ask again";
            return Err(stop.rejected(why.to_owned(), false));
        }
        self.begin_waiting(&uid, &stop)?;
        let already_terminated = match self.pods.get(&uid) {
            Some(PodState::Terminating(pod)) => pod.termination.recorder.stage() != Stage::Terminating,
            Some(PodState::Idle(_) | PodState::Finalizing(_)) => true,
            _ => false,
        };
        if !already_terminated {
            if let Some(eviction) = &stop.eviction {
                let events = &self.context.events;
                events.event(meant, None, Reason::Evicted, &eviction.message);
            }
            match self.pods.get(&uid) {
                Some(PodState::Active(view)) => self.begin(&Arc::clone(view), Cause::Requested, Some(stop)),
                _ => self.change_termination(&uid, stop),
            }
        }
        // The journal has the shorter period first.
        let entry = self.context.journal.pod(&uid).map(|entry| entry.grace);
        let pod = self.pods.get(&uid).and_then(PodState::terminating);
        let grace = entry.or_else(|| pod.map(|pod| pod.termination.period.grace()));
        let trace = pod.map(|pod| pod.termination.recorder.trace());
        let (phase, reason) = trace.map(|trace| (trace.phase, trace.reason)).unwrap_or_default();
        Ok(StopAccepted {
            namespace,
            name,
            uid: uid.to_string(),
            grace_period_seconds: grace.unwrap_or_default().as_secs(),
            already_terminated,
            not_durable: None,
            phase,
            reason,
        })
    }

    fn forget_gone(&mut self) {
        self.pods.retain(|_, pod| !matches!(pod, PodState::Gone));
    }

    fn terminating_uids(&self) -> BTreeSet<PodUid> {
        let pods = self.pods.iter();
        let pods = pods.filter(|(_, pod)| pod.terminating().is_some());
        pods.map(|(uid, _)| uid.clone()).collect()
    }

    fn terminating(&self) -> BTreeMap<PodUid, Arc<PodView>> {
        let on_node =
            |pod: &&Terminating| pod.state == WorkerState::Working && pod.termination.recorder.stage() < Stage::Deleted;
        let views = self.terminating_pods().filter(on_node).map(Terminating::view);
        views.map(|view| (view.pod.uid.clone(), view)).collect()
    }

    fn approve(&mut self, uid: &PodUid, mismatch: Mismatch) -> bool {
        let Some(PodState::Terminating(pod)) = self.pods.get(uid) else {
            return false;
        };
        let at = self.context.node.clock.now();
        let approval = MismatchApproval { mismatch, at };
        self.context.journal.record_approval(uid, approval);
        pod.termination.updates.send_modify(|update| update.approvals += 1);
        true
    }

    fn trace_recorder(&self, uid: &PodUid) -> Option<Arc<TraceRecorder>> {
        let current = self.pods.get(uid).and_then(PodState::terminating);
        let current = current.map(|pod| &pod.termination.recorder);
        let finished = || self.traces.iter().rev().find(|record| record.pod().uid == *uid);
        current.or_else(finished).cloned()
    }

    /// Of several with one name, one that has a worker comes later.
    fn find_pod(&self, name: &ObjectName) -> Option<KnownPod> {
        let named = self.pods.values().filter_map(|state| {
            let view = state.view().filter(|view| name.names(&view.pod))?;
            Some(match state {
                PodState::Active(_) | PodState::Unchecked { .. } | PodState::Queued(_) => (0, view, None),
                PodState::Terminating(pod) => (1, view, Some(Arc::clone(&pod.termination.recorder))),
                PodState::Idle(_) | PodState::Finalizing(_) | PodState::Gone => (2, view, None),
            })
        });
        let (_, view, trace) = named.min_by_key(|(rank, ..)| *rank)?;
        Some((view, trace))
    }

    fn overview(&self) -> Overview {
        let mut overview = Overview::default();
        for pod in self.pods.values() {
            match pod {
                PodState::Terminating(pod) => match pod.state {
                    WorkerState::Working => overview.terminating.push(pod.termination.recorder.trace()),
                    WorkerState::Kept => overview.awaiting_deletion += 1,
                    WorkerState::Finished => overview.awaiting_finalizers += 1,
                },
                PodState::Idle(_) => overview.awaiting_deletion += 1,
                PodState::Finalizing(_) => overview.awaiting_finalizers += 1,
                PodState::Active(_) | PodState::Unchecked { .. } | PodState::Queued(_) | PodState::Gone => {}
            }
        }
        overview.terminating.sort_by_key(|trace| Reverse(trace.elapsed_ms));
        overview
    }

    fn traces(&self, name: Option<&ObjectName>) -> Vec<Trace> {
        let active = self.terminating_pods().filter(|pod| pod.state != WorkerState::Finished);
        let all = self.traces.iter().chain(active.map(|pod| &pod.termination.recorder));
        let named = all.filter(|record| name.is_none_or(|name| name.names(record.pod())));
        let mut traces: Vec<_> = named.map(|record| record.trace()).collect();
        traces.sort_by_key(|trace| (trace.began, trace.stage == Stage::Finished));
        traces
    }
}

impl PodWorkers {
    /// Applies a stop request to a pod that terminates already.
    fn change_termination(&mut self, uid: &PodUid, stop: PodStop) {
        let Some(PodState::Terminating(pod)) = self.pods.get(uid) else {
            return;
        };
        let grace = grace::effective(Some(pod.termination.period.grace()), [stop.grace, None], None);
        let eviction = stop.eviction;
        pod.termination.record_grace(grace, eviction.as_ref());
        pod.termination.updates.send_modify(|update| {
            update.eviction = eviction.map(Arc::new).or(update.eviction.take());
        });
        // Only the journal has this request, unlike a deletion. It must be durable before it shortens the grace period, which
        // never grows again.
        let termination = pod.termination.clone();
        self.shortening
            .spawn(async move { termination.shorten_durably(grace).await });
    }
}

// === impl PodState ===

impl PodState {
    /// The pod as it was last seen, if it has an object.
    fn view(&self) -> Option<Arc<PodView>> {
        match self {
            Self::Active(view) | Self::Unchecked { view, .. } | Self::Queued(view) => Some(Arc::clone(view)),
            Self::Terminating(pod) => Some(pod.view()).filter(|view| !view.object.is_absent()),
            Self::Idle(pod) | Self::Finalizing(pod) => Some(Arc::new(PodView::identity_only(pod.clone()))),
            Self::Gone => None,
        }
    }
}

// === impl Terminating ===

impl Terminating {
    fn view(&self) -> Arc<PodView> {
        Arc::clone(&self.termination.updates.borrow().view)
    }
}
