//! Slots for lists. A list takes memory, mostly in the API server, so only [`LISTS`] run at once. A group has at most
//! half of them, so that an unresponsive aggregated API does not block other groups.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// Maximum number of lists at once.
pub const LISTS: usize = 8;
/// Maximum number of lists of one group at once.
const OF_A_GROUP: usize = LISTS / 2;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Turns(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Slots in use, by group.
    taken: HashMap<Arc<str>, usize>,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    group: Arc<str>,
    /// Its last list failed.
    has_failed: bool,
    go: oneshot::Sender<Turn>,
}

/// A slot. Dropping it passes it to the next list.
#[derive(Debug)]
pub struct Turn {
    turns: Arc<Turns>,
    group: Arc<str>,
}

// === impl Turns ===

impl Turns {
    /// Waits for a slot. Kinds whose last list failed come after all others.
    pub async fn wait(self: &Arc<Self>, group: &Arc<str>, has_failed: bool) -> Option<Turn> {
        let (go, turn) = oneshot::channel();
        let group = Arc::clone(group);
        self.state().waiting.push(Waiting { group, has_failed, go });
        self.go_on();
        turn.await.ok()
    }

    fn go_on(self: &Arc<Self>) {
        loop {
            let next = self.state().next();
            let Some(Waiting { group, go, .. }) = next else { return };
            let turn = Turn {
                turns: Arc::clone(self),
                group,
            };
            // A cancelled waiter drops the slot, which returns it.
            drop(go.send(turn));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    /// The next waiter that gets a slot, if one is free.
    fn next(&mut self) -> Option<Waiting> {
        self.waiting.retain(|it| !it.go.is_closed());
        if self.taken.values().sum::<usize>() >= LISTS {
            return None;
        }
        let has = |group: &Arc<str>| self.taken.get(group).copied().unwrap_or_default();
        let waiting = self.waiting.iter().enumerate();
        let may = waiting.filter(|(_, it)| has(&it.group) < OF_A_GROUP);
        let (place, _) = may.min_by_key(|(place, it)| (it.has_failed, has(&it.group), *place))?;
        let next = self.waiting.remove(place);
        *self.taken.entry(Arc::clone(&next.group)).or_default() += 1;
        Some(next)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        {
            let mut state = self.turns.state();
            if let Some(taken) = state.taken.get_mut(&self.group) {
                *taken -= 1;
                if *taken == 0 {
                    state.taken.remove(&self.group);
                }
            }
        }
        self.turns.go_on();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_group_has_half_of_the_turns_at_most_and_kinds_that_failed_come_last() {
        let turns = Arc::new(Turns::default());
        let [one, other]: [Arc<str>; 2] = ["one".into(), "other".into()];
        let mut held = Vec::new();
        for _ in 0..OF_A_GROUP {
            held.push(turns.wait(&one, false).await.unwrap());
        }
        let mut waits = Box::pin(turns.wait(&one, false));
        assert!((&mut waits).now_or_never().is_none(), "the group has its share");
        for _ in 0..OF_A_GROUP {
            held.push(turns.wait(&other, false).await.unwrap());
        }
        let mut failed = Box::pin(turns.wait(&other, true));
        let mut later = Box::pin(turns.wait(&other, false));
        assert!((&mut failed).now_or_never().is_none() && (&mut later).now_or_never().is_none());
        held.pop();
        assert!((&mut failed).now_or_never().is_none());
        drop((&mut later).now_or_never().flatten().unwrap());
        drop((&mut failed).now_or_never().flatten().unwrap());
        held.remove(0);
        assert!((&mut waits).now_or_never().flatten().is_some());
    }

    #[tokio::test]
    async fn whoever_waits_no_more_holds_up_nobody() {
        let turns = Arc::new(Turns::default());
        let group: Arc<str> = "one".into();
        let mut held = Vec::new();
        for _ in 0..OF_A_GROUP {
            held.push(turns.wait(&group, false).await.unwrap());
        }
        let mut gone = Box::pin(turns.wait(&group, false));
        assert!((&mut gone).now_or_never().is_none());
        drop(gone);
        let mut waits = Box::pin(turns.wait(&group, true));
        assert!((&mut waits).now_or_never().is_none());
        drop(held);
        assert!((&mut waits).now_or_never().flatten().is_some());
        assert!(turns.state().taken.is_empty());
    }
}
