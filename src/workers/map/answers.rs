//! What the map answers whoever asks of pods, or asks for something to be done to one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{PodSyncStatus, PodWorkers, State};
use crate::{
    model::{
        event::Reason,
        mismatch::{Mismatch, MismatchApproval},
        pod::{PodUid, PodView},
        termination::Cause,
        trace::{Stage, Trace},
    },
    teardown::{
        begin::shorten,
        grace::{self, RequestedGrace},
        journal::PodJournalExt as _,
    },
    trace_recorder::TraceRecorder,
    workers::{
        ask::{Overview, Question},
        kill::{Granted, Kill, Refused},
    },
};

// === impl PodWorkers ===

impl PodWorkers {
    pub(super) fn answer(&mut self, question: Question) {
        // Who no longer listens needs no answer.
        match question {
            Question::Overview(answer) => answer.send(self.overview()).ok(),
            Question::Stories {
                namespace,
                name,
                answer,
            } => answer.send(self.told(&namespace, &name)).ok().map(drop),
            // Nothing is done behind the back of somebody who was told that it is not.
            Question::Kill(_, answer) if answer.is_closed() => None,
            Question::Kill(kill, answer) => answer.send(self.kill(kill)).ok().map(drop),
            Question::TraceRecorder(uid, answer) => answer.send(self.record(&uid)).ok().map(drop),
            Question::Living(name, answer) => {
                let living = self.living.values().find(|view| name.names(&view.pod)).cloned();
                let absent = || Some(Arc::new(PodView::identity_only(self.absent.named(&name)?)));
                let found = living.or_else(absent);
                answer.send(found).ok().map(drop)
            }
            Question::AtWork(answer) => answer.send(self.at_work()).ok().map(drop),
            Question::Terminating(answer) => answer.send(self.terminating()).ok().map(drop),
            Question::Release(_, _, answer) if answer.is_closed() => None,
            Question::Release(uid, mismatch, answer) => answer.send(self.release(&uid, mismatch)).ok(),
        };
    }

    /// What a request comes to. One for a pod that has ended already changes nothing.
    fn kill(&mut self, kill: Kill) -> Result<Granted, Refused> {
        if self.context.stopping.is_cancelled() {
            return Err(Refused::Stopping(kill.pod()));
        }
        if let Some(why) = self.guard.why_no_new_work() {
            return Err(kill.held(why, self.guard.is_blocked_by_kubelet()));
        }
        for view in self.absent.take_named(&kill.name) {
            self.begin_checked(view);
        }
        let ending = self.pods.values().map(|status| status.update.borrow());
        let ending = ending
            .filter(|update| !update.removed)
            .map(|update| Arc::clone(&update.view));
        let idle = self.absent.ended().filter(|pod| *pod.name == *kill.name);
        let idle = idle.map(|pod| Arc::new(PodView::identity_only(pod.clone())));
        let views: Vec<_> = ending.chain(self.living.values().cloned()).chain(idle).collect();
        let meant = kill.resolve(views.iter().map(|view| &**view))?;
        let uid = meant.pod.uid.clone();
        if self.context.journal.is_cancelled(&uid) {
            let why = "an earlier request is being cancelled, because a kubelet came; ask again";
            return Err(kill.held(why.to_owned(), false));
        }
        let has_ended = |status: &PodSyncStatus| status.record.stage() != Stage::Terminating;
        let ended_already = self.absent.has_ended(&uid) || self.pods.get(&uid).is_some_and(has_ended);
        if !ended_already {
            if let Some(imposed) = &kill.imposed {
                self.context
                    .events
                    .event(meant, None, Reason::Evicted, &imposed.message);
            }
            match self.living.remove(&uid) {
                Some(view) => self.begin(view, false, Cause::Requested, Some(kill)),
                None => self.change_end(&uid, kill),
            }
        }
        // One that is about to be shortened is in the journal first.
        let entry = self.context.journal.pod(&uid).map(|entry| entry.grace);
        let grace = entry.or_else(|| self.pods.get(&uid).map(|status| status.period.grace()));
        let shown = self.pods.get(&uid).and_then(|status| status.record.terminal_state());
        Ok(Granted {
            uid: uid.to_string(),
            grace_seconds: grace.unwrap_or_default().as_secs(),
            ended_already,
            reason: shown.as_ref().and_then(|shown| shown.reason.clone()),
            phase: shown.map(|shown| shown.phase),
        })
    }

    /// A request for the end of a pod that comes to its end already.
    fn change_end(&mut self, uid: &PodUid, kill: Kill) {
        let Some(status) = self.pods.get_mut(uid) else { return };
        let asked = RequestedGrace {
            imposed: kill.grace,
            ..RequestedGrace::default()
        };
        let grace = grace::effective(Some(status.period.grace()), asked);
        let (now, imposed) = (self.context.clock.now(), kill.imposed);
        self.context
            .journal
            .begin(status.record.pod(), now, grace, imposed.as_ref());
        status.update.send_modify(|update| {
            update.imposed = imposed.map(Arc::new).or(update.imposed.take());
        });
        // Unlike that of a deletion, nobody but the journal remembers it, and a grace period never grows again.
        let (journal, period, record) = (
            Arc::clone(&self.context.journal),
            Arc::clone(&status.period),
            Arc::clone(&status.record),
        );
        self.shortening.spawn(async move {
            journal.durable().await.ok();
            shorten(&period, &record, grace);
        });
    }

    /// All that the map has to do with, or had a moment ago.
    fn at_work(&self) -> BTreeSet<PodUid> {
        self.pods.keys().chain(self.ended.keys()).cloned().collect()
    }

    /// Pods that a worker is at and that still have something on the node.
    fn terminating(&self) -> BTreeMap<PodUid, Arc<PodView>> {
        let on_node = |status: &PodSyncStatus| status.state == State::Working && status.record.stage() < Stage::Deleted;
        let pods = self.pods.iter().filter(|(_, status)| on_node(status));
        pods.map(|(uid, status)| (uid.clone(), Arc::clone(&status.update.borrow().view)))
            .collect()
    }

    /// Approves a mismatch about a pod; `false` if the pod does not terminate.
    fn release(&mut self, uid: &PodUid, mismatch: Mismatch) -> bool {
        let Some(status) = self.pods.get(uid) else { return false };
        let at = self.context.clock.now();
        self.context
            .journal
            .record_approval(uid, MismatchApproval { mismatch, at });
        status.update.send_modify(|update| update.approvals += 1);
        true
    }

    fn record(&self, uid: &PodUid) -> Option<Arc<TraceRecorder>> {
        let of_now = self.pods.get(uid).map(|status| &status.record);
        let of_before = || self.stories.iter().rev().find(|record| record.pod().uid == *uid);
        of_now.or_else(of_before).cloned()
    }

    fn overview(&self) -> Overview {
        let (kept, finished) = self.absent.counts();
        let mut overview = Overview {
            kept,
            finished,
            ..Overview::default()
        };
        for status in self.pods.values() {
            match status.state {
                State::Working => overview.terminating.push(status.record.trace()),
                State::Kept => overview.kept += 1,
                State::Finished => overview.finished += 1,
            }
        }
        overview
            .terminating
            .sort_by_key(|story| std::cmp::Reverse(story.elapsed_ms));
        overview
    }

    /// Newest last: one name may have had several pods.
    fn told(&self, namespace: &str, name: &str) -> Vec<Trace> {
        let living = self
            .pods
            .values()
            .filter(|status| status.state != State::Finished)
            .map(|status| &status.record);
        let mut stories: Vec<_> = self
            .stories
            .iter()
            .chain(living)
            .filter(|record| &*record.pod().namespace == namespace && &*record.pod().name == name)
            .map(|record| record.trace())
            .collect();
        stories.sort_by_key(|story| (story.began, story.stage == Stage::Finished));
        stories
    }
}
