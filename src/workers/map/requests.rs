//! Handles requests to the map.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{PodSyncStatus, PodWorkers, WorkerState};
use crate::{
    model::{
        event::Reason,
        mismatch::{Mismatch, MismatchApproval},
        pod::{PodUid, PodView},
        termination::Cause,
        trace::{Stage, Trace},
    },
    object_name::ObjectName,
    teardown::{
        grace::{self, RequestedGrace},
        journal::PodJournalExt as _,
    },
    trace_recorder::TraceRecorder,
    workers::{
        handle::{KnownPod, Overview, Request, TraceFilter},
        stop::{PodStop, StopAccepted, StopRejected},
    },
};

// === impl PodWorkers ===

impl PodWorkers {
    pub(super) fn handle(&mut self, request: Request) {
        // A caller may have stopped waiting.
        match request {
            Request::Overview(reply) => reply.send(self.overview()).ok(),
            Request::Traces(filter, reply) => reply.send(self.traces_of(&filter)).ok().map(drop),
            // A request whose caller no longer waits was reported as failed, and is not executed.
            Request::Stop(_, reply) if reply.is_closed() => None,
            Request::Stop(stop, reply) => reply.send(self.stop_pod(stop)).ok().map(drop),
            Request::TraceRecorder(uid, reply) => reply.send(self.record(&uid)).ok().map(drop),
            Request::FindPod(name, reply) => reply.send(self.find(&name)).ok().map(drop),
            Request::TerminatingUids(reply) => reply.send(self.terminating_uids()).ok().map(drop),
            Request::Terminating(reply) => reply.send(self.terminating()).ok().map(drop),
            Request::Approve(_, _, reply) if reply.is_closed() => None,
            Request::Approve(uid, mismatch, reply) => reply.send(self.approve(&uid, mismatch)).ok(),
        };
    }

    /// A pod in the API, with or without a worker. Of several with one name, one that has a worker comes last.
    fn find(&self, name: &ObjectName) -> Option<KnownPod> {
        let without_trace = |view: Arc<PodView>| KnownPod { view, trace: None };
        let mut active = self.active.values().chain(self.idle_pods.waiting());
        let active = active.find(|view| name.names(&view.pod)).cloned().map(without_trace);
        let mut working = self
            .pods
            .values()
            .filter(|status| !status.termination.updates.borrow().view.object.is_absent());
        let working = || {
            let status = working.find(|status| name.names(status.termination.recorder.pod()))?;
            Some(KnownPod {
                view: Arc::clone(&status.termination.updates.borrow().view),
                trace: Some(Arc::clone(&status.termination.recorder)),
            })
        };
        let idle = || {
            Some(without_trace(Arc::new(PodView::identity_only(
                self.idle_pods.named(name)?,
            ))))
        };
        active.or_else(working).or_else(idle)
    }

    /// Stops a pod. A request for a pod that is stopped changes nothing.
    fn stop_pod(&mut self, stop: PodStop) -> Result<StopAccepted, StopRejected> {
        if self.context.stopping.is_cancelled() {
            return Err(StopRejected::Stopping(stop.pod()));
        }
        if let Some(why) = self.guard.why_no_new_work() {
            return Err(stop.rejected(why, self.guard.is_blocked_by_kubelet()));
        }
        let terminating = self.pods.values().map(|status| status.termination.updates.borrow());
        let terminating = terminating
            .filter(|update| !update.view.object.is_absent())
            .map(|update| Arc::clone(&update.view));
        let idle = self.idle_pods.finished_pods().filter(|pod| *pod.name == *stop.name);
        let idle = idle.map(|pod| Arc::new(PodView::identity_only(pod.clone())));
        let waiting = self.idle_pods.waiting().chain(self.active.values()).cloned();
        let known: Vec<_> = terminating.chain(waiting).chain(idle).collect();
        let meant = stop.resolve(known.iter().map(|view| &**view))?;
        let (namespace, name) = (meant.pod.namespace.to_string(), meant.pod.name.to_string());
        let uid = meant.pod.uid.clone();
        if self.context.journal.is_canceled(&uid) {
            let why = "an earlier request is being canceled, because a kubelet came; ask again";
            return Err(stop.rejected(why.to_owned(), false));
        }
        self.begin_waiting(&uid).map_err(|why| stop.rejected(why, false))?;
        let is_stopped = |status: &PodSyncStatus| status.termination.recorder.stage() != Stage::Terminating;
        let already_terminated = self.idle_pods.is_finished(&uid) || self.pods.get(&uid).is_some_and(is_stopped);
        if !already_terminated {
            if let Some(eviction) = &stop.eviction {
                self.context
                    .events
                    .event(meant, None, Reason::Evicted, &eviction.message);
            }
            match self.active.remove(&uid) {
                Some(view) => self.begin(&view, Cause::Requested, Some(stop)),
                None => self.change_termination(&uid, stop),
            }
        }
        // The journal has the shorter period first.
        let entry = self.context.journal.pod(&uid).map(|entry| entry.grace);
        let grace = entry.or_else(|| self.pods.get(&uid).map(|status| status.termination.period.grace()));
        let shown = self
            .pods
            .get(&uid)
            .and_then(|status| status.termination.recorder.terminal_state());
        Ok(StopAccepted {
            namespace,
            name,
            uid: uid.to_string(),
            grace_period_seconds: grace.unwrap_or_default().as_secs(),
            already_terminated,
            not_durable: None,
            reason: shown.as_ref().and_then(|shown| shown.reason.clone()),
            phase: shown.map(|shown| shown.phase),
        })
    }

    /// Applies a stop request to a pod that terminates already.
    fn change_termination(&mut self, uid: &PodUid, stop: PodStop) {
        let Some(status) = self.pods.get_mut(uid) else { return };
        let asked = RequestedGrace {
            grace_override: stop.grace,
            ..RequestedGrace::default()
        };
        let grace = grace::effective(Some(status.termination.period.grace()), asked);
        let eviction = stop.eviction;
        status.termination.record_grace(grace, eviction.as_ref());
        status.termination.updates.send_modify(|update| {
            update.eviction = eviction.map(Arc::new).or(update.eviction.take());
        });
        // Only the journal has this request, unlike a deletion. It must be durable before it shortens the grace period, which
        // never grows again.
        let termination = status.termination.clone();
        self.shortening.spawn(async move {
            termination.context.journal.durable().await.ok();
            termination.shorten(grace);
        });
    }

    /// Pods in the map, and pods that have just finished.
    fn terminating_uids(&self) -> BTreeSet<PodUid> {
        self.pods.keys().chain(self.finished.keys()).cloned().collect()
    }

    /// Pods with a worker and something on the node.
    fn terminating(&self) -> BTreeMap<PodUid, Arc<PodView>> {
        let on_node = |status: &PodSyncStatus| {
            status.state == WorkerState::Working && status.termination.recorder.stage() < Stage::Deleted
        };
        let pods = self.pods.iter().filter(|(_, status)| on_node(status));
        pods.map(|(uid, status)| (uid.clone(), Arc::clone(&status.termination.updates.borrow().view)))
            .collect()
    }

    /// Approves a mismatch of a pod; `false` if the pod does not terminate.
    fn approve(&mut self, uid: &PodUid, mismatch: Mismatch) -> bool {
        let Some(status) = self.pods.get(uid) else { return false };
        let at = self.context.node.clock.now();
        self.context
            .journal
            .record_approval(uid, MismatchApproval { mismatch, at });
        status.termination.updates.send_modify(|update| update.approvals += 1);
        true
    }

    fn record(&self, uid: &PodUid) -> Option<Arc<TraceRecorder>> {
        let current = self.pods.get(uid).map(|status| &status.termination.recorder);
        let finished = || self.traces.iter().rev().find(|record| record.pod().uid == *uid);
        current.or_else(finished).cloned()
    }

    fn overview(&self) -> Overview {
        let (awaiting_deletion, awaiting_finalizers) = self.idle_pods.counts();
        let mut overview = Overview {
            awaiting_deletion,
            awaiting_finalizers,
            ..Overview::default()
        };
        for status in self.pods.values() {
            match status.state {
                WorkerState::Working => overview.terminating.push(status.termination.recorder.trace()),
                WorkerState::Kept => overview.awaiting_deletion += 1,
                WorkerState::Finished => overview.awaiting_finalizers += 1,
            }
        }
        overview
            .terminating
            .sort_by_key(|trace| std::cmp::Reverse(trace.elapsed_ms));
        overview
    }

    /// Oldest first: one name may have had several pods.
    fn traces_of(&self, filter: &TraceFilter) -> Vec<Trace> {
        let active = self
            .pods
            .values()
            .filter(|status| status.state != WorkerState::Finished)
            .map(|status| &status.termination.recorder);
        let mut traces: Vec<_> = self
            .traces
            .iter()
            .chain(active)
            .filter(|record| filter.contains(record.pod()))
            .map(|record| record.trace())
            .collect();
        traces.sort_by_key(|trace| (trace.began, trace.stage == Stage::Finished));
        traces
    }
}
