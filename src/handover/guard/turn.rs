//! Whether anything may be begun: not while this agent stands by for a kubelet, nor when the node is handed back to one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

use super::Guard;

/// For so long at least a node that is handed back is nobody else's: what asks for it is about to start a kubelet.
const STARTS: Duration = Duration::from_secs(5);

/// Whose turn it is, by all but the processes.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Why this agent stands by, where it does so for a kubelet that may not be seen among the processes.
    pub stands_by: Option<String>,
    /// The kubelet for which it does so is there, and does nothing.
    pub is_wedged: bool,
    /// How many ask for the node just now, for a kubelet.
    handing_back: usize,
    /// Until when it is a kubelet's that has not been seen yet.
    handed_back: Option<Instant>,
    /// When it was handed back for the first time to a kubelet that is started again and again, and never seen, and when for
    /// the last time.
    in_vain: Option<(Instant, Instant)>,
    under_way: BTreeMap<u64, Work>,
    last: u64,
}

/// What was begun, and has not come to a safe point.
#[derive(Debug)]
struct Work {
    /// As people call it.
    what: String,
    /// The last attempt has failed, and the next one has not begun.
    rests: bool,
    /// An attempt has failed since somebody asked for the node: nobody waits for the next to begin.
    has_failed: bool,
}

/// Something that was begun, as long as it goes on.
pub struct UnderWay {
    guard: Guard,
    id: u64,
}

/// What came of a hand-back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HandedBack {
    /// What had not come to a safe point when the time was over, and was let go as it was: pods, of which the kubelet may
    /// repeat hooks and grace period.
    pub cut_short: Vec<String>,
}

// === impl Turn ===

impl Turn {
    /// Why nothing may be touched, if so.
    pub fn why_held(&self) -> Option<String> {
        let left = self.handed_back?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then(|| {
            format!(
                "the node was handed back to its kubelet, which has {} s to start",
                left.as_secs() + 1
            )
        })
    }

    /// Whether anything is done just now.
    pub fn is_busy(&self) -> bool {
        self.under_way.values().any(|work| !work.rests)
    }

    /// Whether somebody waits for the node, and for nothing but attempts that go on already.
    fn is_nearly_at_rest(&self) -> bool {
        self.handing_back > 0 && self.under_way.values().all(|work| work.has_failed)
    }

    /// What was begun, and has not come to a safe point, as people call it.
    pub fn under_way(&self) -> Vec<String> {
        self.under_way.values().map(|work| work.what.clone()).collect()
    }

    /// A kubelet is here: it holds everything back by itself.
    pub fn kubelet_is_seen(&mut self) {
        self.handed_back = None;
        self.in_vain = None;
    }

    /// The node is handed back now, which was asked for at that moment. Whoever starts a kubelet in vain, and asks each time,
    /// gets the time that it has to come only once.
    fn hand_back(&mut self, asked: Instant, keeps: Duration) {
        let now = Instant::now();
        let goes_on = self
            .in_vain
            .filter(|(_, last)| asked.saturating_duration_since(*last) < keeps);
        let first = goes_on.map_or(now, |(first, _)| first);
        self.in_vain = Some((first, now));
        self.handed_back = Some((first + keeps).max(now + STARTS.min(keeps)));
    }
}

// === impl Guard ===

impl Guard {
    /// Whose turn it is, by more than the processes: why this agent stands by, if it does.
    pub fn set_turn(&self, stands_by: Option<String>, is_wedged: bool) {
        let mut state = self.lock();
        state.turn.is_wedged = is_wedged;
        if state.turn.stands_by.is_some() && stands_by.is_none() {
            self.may_begin.notify_waiters();
        }
        if stands_by.is_some() {
            self.lets_go.notify_waiters();
        }
        state.turn.stands_by = stands_by;
    }

    /// Whether the node is being given to a kubelet, or was, and that one has not been seen yet.
    pub fn gives_the_node_back(&self) -> bool {
        let state = self.lock();
        state.turn.handing_back > 0 || state.turn.why_held().is_some()
    }

    /// Returns when this agent stands by no more, or is resumed.
    pub async fn may_begin(&self) {
        self.may_begin.notified().await;
    }

    /// Why nothing may be begun at the moment, though what was begun may perhaps go on.
    pub fn why_nothing_begins(&self) -> Option<String> {
        let handing_back = || {
            let going_on = self.lock().turn.handing_back > 0;
            going_on.then(|| "the node is being handed back to its kubelet".to_owned())
        };
        let paused = || self.paused().map(|paused| paused.why());
        self.why_held().or_else(handing_back).or_else(paused)
    }

    /// Begins something that a hand-back waits for, called so; an error says why nothing begins.
    pub fn begin(&self, what: String) -> Result<UnderWay, String> {
        if let Some(why) = self.why_nothing_begins() {
            return Err(why);
        }
        let mut state = self.lock();
        if !state.turn.is_busy() {
            self.look_now.notify_one();
        }
        state.turn.last += 1;
        let id = state.turn.last;
        let work = Work {
            what,
            rests: false,
            has_failed: false,
        };
        state.turn.under_way.insert(id, work);
        Ok(UnderWay {
            guard: self.clone(),
            id,
        })
    }

    /// Gives the node to a kubelet that is about to start: nothing begins from here on, and what is under way has so long to
    /// come to a safe point; what rests after an attempt that has failed makes one more, and more while others are waited for.
    /// Then nothing is touched for as long as `keeps`, or until a kubelet is seen.
    pub async fn hand_back(&self, patience: Duration, keeps: Duration) -> HandedBack {
        let _handing_back = HandingBack::begin(self);
        let asked = Instant::now();
        let at_rest = async {
            loop {
                let ends = self.at_rest.notified();
                if !self.lock().turn.is_busy() {
                    return;
                }
                ends.await;
            }
        };
        // Let go in time or not: whoever asked starts a kubelet now.
        timeout(patience, at_rest).await.ok();
        // Also those that an agent before this one was in the middle of, and of this one's those with which it may not go on, as
        // since somebody has asked a kubelet for its version.
        let midway = self.journal.midway();
        // An agent that is started again meanwhile is not to go on where this one ends.
        self.journal.set_turn(None);
        let mut state = self.lock();
        state.turn.hand_back(asked, keeps);
        self.lets_go.notify_waiters();
        let cut_short: BTreeSet<_> = state.turn.under_way().into_iter().chain(midway).collect();
        HandedBack {
            cut_short: cut_short.into_iter().collect(),
        }
    }

    fn tell_of_rest(&self) {
        if !self.lock().turn.is_busy() {
            self.at_rest.notify_waiters();
        }
    }
}

/// Ends with whoever hands the node back.
struct HandingBack<'a>(&'a Guard);

// === impl HandingBack ===

impl<'a> HandingBack<'a> {
    fn begin(guard: &'a Guard) -> Self {
        let mut state = guard.lock();
        state.turn.handing_back += 1;
        for work in state.turn.under_way.values_mut() {
            (work.rests, work.has_failed) = (false, false);
        }
        guard.once_more.notify_waiters();
        drop(state);
        Self(guard)
    }
}

impl Drop for HandingBack<'_> {
    fn drop(&mut self) {
        self.0.lock().turn.handing_back -= 1;
    }
}

// === impl UnderWay ===

impl UnderWay {
    /// Whether more may be begun as part of it.
    pub fn may_begin_more(&self) -> bool {
        self.guard.why_nothing_begins().is_none()
    }

    /// An attempt has failed, and the next one is some time away.
    pub fn rests(&self) {
        if let Some(work) = self.guard.lock().turn.under_way.get_mut(&self.id) {
            (work.rests, work.has_failed) = (true, true);
        }
        self.guard.tell_of_rest();
    }

    /// The next attempt begins, if it may.
    pub fn goes_on(&self) -> bool {
        let mut state = self.guard.lock();
        if state.turn.is_nearly_at_rest() {
            return false;
        }
        if let Some(work) = state.turn.under_way.get_mut(&self.id) {
            work.rests = false;
        }
        self.guard.look_now.notify_one();
        true
    }

    /// Returns when the next attempt is to begin at once: the node is about to be handed back.
    pub async fn once_more(&self) {
        loop {
            let told = self.guard.once_more.notified();
            if !self
                .guard
                .lock()
                .turn
                .under_way
                .get(&self.id)
                .is_some_and(|work| work.rests)
            {
                return;
            }
            told.await;
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.guard.lock().turn.under_way.remove(&self.id);
        self.guard.tell_of_rest();
    }
}
