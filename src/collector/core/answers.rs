//! Applies the outcomes of requests.

use std::time::Duration;

use tokio::time::Instant;

use super::{Core, insert_limited};
use crate::{
    api::{ApiError, ErrorKind},
    collector::{
        decide::Deletion,
        graph::{NodeId, Observed, WorkItem},
        names::{escape_control_chars, object_label, truncate},
        outage::backoff,
        queue::Refusal,
        request::{Action, Outcome, Request, Target},
    },
};

/// First and maximum pause.
type Backoff = (Duration, Duration);
/// Backoff of a request that got 429 or no answer. Other items are sent in between: the failure may
/// concern this one only.
const RETRY: Backoff = (Duration::from_millis(500), Duration::from_secs(30));
/// Backoff of a GET for an existing owner whose kind cannot be watched.
const RETRY_UNWATCHED: Backoff = (Duration::from_secs(10), Duration::from_secs(300));
/// Pause after a 429 without Retry-After.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);

/// Pause that an overloaded server asks for.
pub fn requested_pause(error: &ApiError) -> Option<Duration> {
    let is_overloaded = error.code() == Some(429);
    error.retry_after().or(is_overloaded.then_some(DEFAULT_PAUSE))
}

impl Core {
    /// Applies the outcome of a request.
    pub fn apply(&mut self, request: &Request, outcome: Outcome, now: Instant) {
        let (target, item) = (&request.target, request.item());
        if let Action::Delete(deletion) = &request.action {
            self.record_delete_answer(&deletion.waiting_owners, now);
        }
        match outcome {
            Outcome::Done => {
                self.contested.remove(&target.id);
                self.record_write(request);
                self.queue.done(item, now);
            }
            Outcome::Absent => {
                if matches!(request.action, Action::GetOwner) {
                    self.counts.owner_lookups += 1;
                } else {
                    self.contested.remove(&target.id);
                }
                self.set_absent(target);
                self.queue.done(item, now);
            }
            Outcome::Exists(object) => {
                self.counts.owner_lookups += 1;
                match self.apply_get(target, &object) {
                    Ok(()) => self.queue.done(item, now),
                    Err((why, range)) => {
                        let pause = range.map(|range| backoff(range, self.queue.num_requeues(item)));
                        self.queue.add_rate_limited(item, why, pause, now);
                    }
                }
            }
            Outcome::Changed(object) => {
                self.record_conflict(target, &object);
                self.apply_get(target, &object).ok();
                let why = "conflict: the object has changed";
                self.queue.add_rate_limited(item, why, None, now);
            }
            Outcome::Failed(error) => self.retry(request, &error, now),
        }
    }

    /// Counts and logs a write that succeeded.
    fn record_write(&mut self, Request { target, action }: &Request) {
        let counter = match action {
            Action::GetOwner => &mut self.counts.owner_lookups,
            Action::DropReferences(_) => &mut self.counts.references_dropped,
            Action::Delete(Deletion { policy, .. }) => {
                tracing::debug!(
                    group = target.group,
                    resource = target.plural,
                    namespace = &*target.namespace,
                    name = target.name,
                    uid = target.uid,
                    %policy,
                    "Deleted"
                );
                &mut self.counts.deleted
            }
            Action::RemoveFinalizer { finalizer, unsynced } => {
                self.removable_since.remove(&target.id);
                // The watch may still show the finalizer.
                self.confirmed.remove(&target.id);
                if let Some(why) = unsynced {
                    self.counts.removed_unsynced += 1;
                    tracing::warn!(
                        object = escape_control_chars(&object_label(&self.graph, target.id)),
                        uid = escape_control_chars(&truncate(&target.uid)),
                        %finalizer,
                        why,
                        "Finalizer removed while a kind is not synced"
                    );
                }
                &mut self.counts.finalizers_removed
            }
        };
        *counter += 1;
    }

    /// Reports a failed request, and delays its item.
    fn retry(&mut self, request: &Request, error: &ApiError, now: Instant) {
        let (item, uid) = (request.item(), &request.target.uid);
        if self.counts.failed(request.name(), error) {
            tracing::warn!(%error, uid, "Request failed; will retry (gc status counts further failures)");
        } else {
            tracing::debug!(%error, uid, "Request failed; will retry");
        }
        let pause = match error.kind {
            // It was not sent.
            ErrorKind::UnverifiedServer(_) | ErrorKind::Blocked(_) => return self.queue.requeue(item),
            ErrorKind::Unreachable { .. } | ErrorKind::Refused { code: 429, .. } => {
                let pause = backoff(RETRY, self.queue.num_requeues(item));
                Some(pause.max(requested_pause(error).unwrap_or_default()))
            }
            ErrorKind::Refused { .. } | ErrorKind::Unreadable(_) | ErrorKind::Timeout(_) => None,
        };
        let refused = self.queue.entry(item).and_then(|entry| entry.refused);
        let since = refused.map_or(now, |refusal| refusal.since);
        self.queue.add_rate_limited(item, &error.to_string(), pause, now);
        if let Some(code) = error.code() {
            let step = request.name();
            self.queue.record_refusal(item, Refusal { step, code, since });
        }
    }

    /// Records that a write met a conflict; `object` is the current state.
    fn record_conflict(&mut self, target: &Target, object: &Observed) {
        self.counts.conflicts += 1;
        if let Some((times, seen)) = self.contested.get_mut(&target.id)
            && seen.leads_to_same_decision(object)
        {
            *times += 1;
            return;
        }
        insert_limited(&mut self.contested, target.id, (1, object.clone()));
    }

    /// Discards confirmed and absent owners, and gets each again: the store may have been restored from a backup.
    pub fn recheck_absent(&mut self) {
        self.confirmed.clear();
        self.graph.recheck_absent();
    }

    /// Records the answer to a DELETE that was sent because these owners are in foreground deletion.
    fn record_delete_answer(&mut self, waiting_owners: &[NodeId], now: Instant) {
        for &owner in waiting_owners {
            let Some(in_flight) = self.deletes_in_flight.get_mut(&owner) else {
                continue;
            };
            *in_flight -= 1;
            if *in_flight == 0 {
                self.deletes_in_flight.remove(&owner);
                self.enqueue(WorkItem::Decide(owner), owner, now);
            }
        }
    }

    /// Applies the answer to a GET.
    ///
    /// # Errors
    ///
    /// Why it has to be read again, and the backoff.
    fn apply_get(&mut self, target: &Target, object: &Observed) -> Result<(), (&'static str, Option<Backoff>)> {
        if !self.graph.matches(target.id, target.node_uid, target.coordinates()) {
            return Ok(());
        }
        if object.uid != target.uid {
            self.set_absent(target);
            return Ok(());
        }
        let watched = self.sync_state.watched.get(&target.kind);
        let Some(watched) = watched.filter(|watched| watched.synced) else {
            // No watch would report its deletion.
            return Err(("it exists, and its kind cannot be watched", Some(RETRY_UNWATCHED)));
        };
        if !self.graph.apply_get(target.id, object, watched.progress) {
            return Err(("the watch has shown a later state", None));
        }
        let node = self.graph.node(target.id);
        if node.state.has_deletion_finalizer() && object.version == node.version {
            insert_limited(&mut self.confirmed, target.id, object.version);
        }
        Ok(())
    }

    /// Records that a GET did not find the object.
    fn set_absent(&mut self, target: &Target) {
        if self.graph.matches(target.id, target.node_uid, target.coordinates()) {
            self.confirmed.remove(&target.id);
            self.graph.set_absent(target.id);
        }
    }
}
