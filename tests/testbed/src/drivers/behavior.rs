//! How a driver behaves, and what it was asked.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

/// How a driver answers a call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Behavior {
    /// Does it.
    #[default]
    Well,
    /// Does it after so long.
    Slow(Duration),
    /// Says that it is done, and does nothing.
    Pretends,
    /// Refuses.
    Fails(Code, String),
    /// Never answers.
    Hangs,
}

/// Which calls are meant.
pub type When<C> = fn(&C) -> bool;

/// A call that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called<C> {
    /// When.
    pub at: Instant,
    /// What was asked.
    pub call: C,
}

/// What is played, and what was.
#[derive(Debug)]
pub(super) struct Play<C>(Mutex<Parts<C>>);

#[derive(Debug)]
struct Parts<C> {
    lasting: Behavior,
    rules: Vec<(When<C>, Behavior)>,
    next: VecDeque<Behavior>,
    calls: Vec<Called<C>>,
}

// === impl Play ===

impl<C: Clone> Play<C> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Parts {
            lasting: Behavior::Well,
            rules: Vec::new(),
            next: VecDeque::new(),
            calls: Vec::new(),
        }))
    }

    /// From now on, after what is meant for the next calls.
    pub(super) fn behave(&self, behavior: Behavior) {
        let mut parts = self.parts();
        parts.lasting = behavior;
        parts.rules.clear();
    }

    /// From now on to such calls; the latest rule that fits counts.
    pub(super) fn behave_if(&self, when: When<C>, behavior: Behavior) {
        self.parts().rules.insert(0, (when, behavior));
    }

    /// For the next `n` calls.
    pub(super) fn behave_for(&self, n: usize, behavior: Behavior) {
        self.parts().next.extend(vec![behavior; n]);
    }

    pub(super) fn calls(&self) -> Vec<Called<C>> {
        self.parts().calls.clone()
    }

    /// Notes a call and does with it what is due; whether it is to be done.
    pub(super) async fn play(&self, call: C) -> Result<bool, Status> {
        let conduct = {
            let mut parts = self.parts();
            let next = parts.next.pop_front();
            let conduct = next.unwrap_or_else(|| parts.lasting_for(&call).clone());
            let at = Instant::now();
            parts.calls.push(Called { at, call });
            conduct
        };
        match conduct {
            Behavior::Well => Ok(true),
            Behavior::Slow(time) => {
                sleep(time).await;
                Ok(true)
            }
            Behavior::Pretends => Ok(false),
            Behavior::Fails(code, message) => Err(Status::new(code, message)),
            Behavior::Hangs => pending().await,
        }
    }

    fn parts(&self) -> MutexGuard<'_, Parts<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Parts ===

impl<C> Parts<C> {
    fn lasting_for(&self, call: &C) -> &Behavior {
        let rule = self.rules.iter().find(|(when, _)| when(call));
        rule.map_or(&self.lasting, |(_, behavior)| behavior)
    }
}
