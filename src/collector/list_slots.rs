//! Slots for lists. A list takes memory, mostly in the API server, so only [`MAX_LISTS`] run at once. A group has at most
//! half of them, so that an unresponsive aggregated API does not block other groups.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// Maximum number of lists at once.
pub const MAX_LISTS: usize = 8;
/// Maximum number of lists of one group at once.
const MAX_PER_GROUP: usize = MAX_LISTS / 2;

/// Grants slots to monitors; a slot is free again when it is dropped.
#[derive(Debug, Default)]
pub struct ListSlots(Mutex<Slots>);

#[derive(Debug, Default)]
struct Slots {
    /// Slots in use, by group.
    in_use: HashMap<Arc<str>, usize>,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    group: Arc<str>,
    /// Its last list failed.
    has_failed: bool,
    grant: oneshot::Sender<ListSlot>,
}

/// A slot. Dropping it passes it to the next list.
#[derive(Debug)]
pub struct ListSlot {
    slots: Arc<ListSlots>,
    group: Arc<str>,
}

// === impl ListSlots ===

impl ListSlots {
    /// Waits for a slot. Kinds whose last list failed come after all others.
    pub async fn acquire(self: &Arc<Self>, group: &Arc<str>, has_failed: bool) -> Option<ListSlot> {
        let (grant, slot) = oneshot::channel();
        let group = Arc::clone(group);
        self.state().waiting.push(Waiting {
            group,
            has_failed,
            grant,
        });
        self.grant_next();
        slot.await.ok()
    }

    fn grant_next(self: &Arc<Self>) {
        loop {
            let next = self.state().next();
            let Some(Waiting { group, grant, .. }) = next else {
                return;
            };
            let slot = ListSlot {
                slots: Arc::clone(self),
                group,
            };
            // A canceled waiter drops the slot, which returns it.
            drop(grant.send(slot));
        }
    }

    fn state(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Slots ===

impl Slots {
    /// The next waiter that gets a slot, if one is free.
    fn next(&mut self) -> Option<Waiting> {
        self.waiting.retain(|it| !it.grant.is_closed());
        if self.in_use.values().sum::<usize>() >= MAX_LISTS {
            return None;
        }
        let slots_of = |group: &Arc<str>| self.in_use.get(group).copied().unwrap_or_default();
        let waiting = self.waiting.iter().enumerate();
        let allowed = waiting.filter(|(_, it)| slots_of(&it.group) < MAX_PER_GROUP);
        let (index, _) = allowed.min_by_key(|(index, it)| (it.has_failed, slots_of(&it.group), *index))?;
        let next = self.waiting.remove(index);
        *self.in_use.entry(Arc::clone(&next.group)).or_default() += 1;
        Some(next)
    }
}

impl Drop for ListSlot {
    fn drop(&mut self) {
        {
            let mut state = self.slots.state();
            if let Some(in_use) = state.in_use.get_mut(&self.group) {
                *in_use -= 1;
                if *in_use == 0 {
                    state.in_use.remove(&self.group);
                }
            }
        }
        self.slots.grant_next();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_group_gets_half_of_the_slots_and_failed_kinds_come_last() {
        let slots = Arc::new(ListSlots::default());
        let [one, other]: [Arc<str>; 2] = ["one".into(), "other".into()];
        let mut held = Vec::new();
        for _ in 0..MAX_PER_GROUP {
            held.push(slots.acquire(&one, false).await.unwrap());
        }
        let mut waiter = Box::pin(slots.acquire(&one, false));
        assert!((&mut waiter).now_or_never().is_none(), "the group has its share");
        for _ in 0..MAX_PER_GROUP {
            held.push(slots.acquire(&other, false).await.unwrap());
        }
        let mut failed = Box::pin(slots.acquire(&other, true));
        let mut later = Box::pin(slots.acquire(&other, false));
        assert!((&mut failed).now_or_never().is_none() && (&mut later).now_or_never().is_none());
        held.pop();
        assert!((&mut failed).now_or_never().is_none());
        drop((&mut later).now_or_never().flatten().unwrap());
        drop((&mut failed).now_or_never().flatten().unwrap());
        held.remove(0);
        assert!((&mut waiter).now_or_never().flatten().is_some());
    }

    #[tokio::test]
    async fn a_canceled_waiter_does_not_block_others() {
        let slots = Arc::new(ListSlots::default());
        let group: Arc<str> = "one".into();
        let mut held = Vec::new();
        for _ in 0..MAX_PER_GROUP {
            held.push(slots.acquire(&group, false).await.unwrap());
        }
        let mut canceled = Box::pin(slots.acquire(&group, false));
        assert!((&mut canceled).now_or_never().is_none());
        drop(canceled);
        let mut waiter = Box::pin(slots.acquire(&group, true));
        assert!((&mut waiter).now_or_never().is_none());
        drop(held);
        assert!((&mut waiter).now_or_never().flatten().is_some());
        assert!(slots.state().in_use.is_empty());
    }
}
