//! Work in progress: a handover of the node to its kubelet waits until it ends or waits to retry.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::{Notify, watch};

use crate::{model::blocked::Blocked, node::effects::Effects};

/// All work in progress. Clones share it.
#[derive(Clone, Default)]
pub struct Work {
    items: watch::Sender<Items>,
    begun: Arc<Notify>,
}

/// Work in progress. It ends when this is dropped.
pub struct WorkInProgress {
    work: Work,
    id: u64,
}

/// A handover in progress. It ends when this is dropped.
pub struct OngoingHandover<'a>(&'a Work);

#[derive(Default)]
struct Items {
    handovers: usize,
    in_progress: BTreeMap<u64, Item>,
    last: u64,
}

/// Work that has not reached a safe point.
struct Item {
    /// Its name for people, such as `default/web-0`.
    name: String,
    /// The last attempt has failed, and the next one has not begun.
    waits_to_retry: bool,
    /// An attempt has failed since the handover began: the handover does not wait for the next one to begin.
    has_failed: bool,
}

// === impl Work ===

impl Work {
    /// Begins work with this name for people.
    ///
    /// # Errors
    /// Why nothing may begin.
    pub fn begin(&self, effects: &Effects, name: String) -> Result<WorkInProgress, Blocked> {
        effects.check_new()?;
        let mut id = None;
        self.items.send_if_modified(|items| {
            if items.handovers == 0 {
                if !items.is_busy() {
                    self.begun.notify_one();
                }
                items.last += 1;
                id = Some(items.last);
                let item = Item {
                    name,
                    waits_to_retry: false,
                    has_failed: false,
                };
                items.in_progress.insert(items.last, item);
            }
            false
        });
        let id = id.ok_or(Blocked::Handover)?;
        Ok(WorkInProgress { work: self.clone(), id })
    }

    /// Whether an attempt is in progress.
    pub fn is_busy(&self) -> bool {
        self.items.borrow().is_busy()
    }

    /// Returns when an attempt has begun.
    pub async fn begun(&self) {
        self.begun.notified().await;
    }

    /// Names of all work that has not reached a safe point.
    pub fn names(&self) -> Vec<String> {
        let items = self.items.borrow();
        items.in_progress.values().map(|item| item.name.clone()).collect()
    }

    /// Begins a handover. Nothing new begins from now on, and work that waits to retry makes one more attempt at once.
    pub fn begin_handover(&self) -> OngoingHandover<'_> {
        self.items.send_modify(|items| {
            items.handovers += 1;
            for item in items.in_progress.values_mut() {
                (item.waits_to_retry, item.has_failed) = (false, false);
            }
        });
        OngoingHandover(self)
    }

    /// Whether a handover is in progress.
    pub fn is_handed_over(&self) -> bool {
        self.items.borrow().handovers > 0
    }

    /// Returns when no attempt is in progress.
    pub async fn wait_until_idle(&self) {
        // The sender exists as long as this.
        self.items.subscribe().wait_for(|items| !items.is_busy()).await.ok();
    }
}

// === impl Items ===

impl Items {
    fn is_busy(&self) -> bool {
        self.in_progress.values().any(|item| !item.waits_to_retry)
    }

    /// Whether a handover waits only for attempts that are in progress.
    fn is_nearly_idle(&self) -> bool {
        self.handovers > 0 && self.in_progress.values().all(|item| item.has_failed)
    }
}

// === impl WorkInProgress ===

impl WorkInProgress {
    /// The attempt has failed, and the next one begins later.
    pub fn set_failed(&self) {
        self.work.items.send_if_modified(|items| {
            if let Some(item) = items.in_progress.get_mut(&self.id) {
                (item.waits_to_retry, item.has_failed) = (true, true);
            }
            !items.is_busy()
        });
    }

    /// Begins the next attempt. `false`: a handover does not wait for it any more.
    pub fn begin_retry(&self) -> bool {
        let mut begins = false;
        self.work.items.send_if_modified(|items| {
            begins = !items.is_nearly_idle();
            if let Some(item) = items.in_progress.get_mut(&self.id).filter(|_| begins) {
                item.waits_to_retry = false;
            }
            false
        });
        if begins {
            self.work.begun.notify_one();
        }
        begins
    }

    /// Waits until the next attempt has to begin at once, because a handover has begun.
    pub async fn wait_for_retry_request(&self) {
        let waits = |items: &Items| items.in_progress.get(&self.id).is_some_and(|item| item.waits_to_retry);
        self.work.items.subscribe().wait_for(|items| !waits(items)).await.ok();
    }
}

impl Drop for WorkInProgress {
    fn drop(&mut self) {
        self.work.items.send_if_modified(|items| {
            items.in_progress.remove(&self.id);
            !items.is_busy()
        });
    }
}

// === impl OngoingHandover ===

impl Drop for OngoingHandover<'_> {
    fn drop(&mut self) {
        self.0.items.send_if_modified(|items| {
            items.handovers -= 1;
            false
        });
    }
}
