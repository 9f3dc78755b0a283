//! Behavior of a driver, and its recorded calls.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

/// How a driver answers a call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Behavior {
    /// Executes it.
    #[default]
    Well,
    /// Executes it after this time.
    Slow(Duration),
    /// Reports success and does nothing.
    Pretends,
    Fails(Code, String),
    /// Never answers.
    Hangs,
}

/// Selects calls.
pub type When<C> = fn(&C) -> bool;

/// A recorded call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called<C> {
    /// When.
    pub at: Instant,
    /// What was asked.
    pub call: C,
}

/// Rules and recorded calls.
#[derive(Debug)]
pub(super) struct Play<C>(Mutex<Parts<C>>);

#[derive(Debug)]
struct Parts<C> {
    lasting: Behavior,
    rules: Vec<(When<C>, Behavior)>,
    next: VecDeque<Behavior>,
    calls: Vec<Called<C>>,
}

impl<C: Clone> Play<C> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Parts {
            lasting: Behavior::Well,
            rules: Vec::new(),
            next: VecDeque::new(),
            calls: Vec::new(),
        }))
    }

    /// Sets the behavior after the rules for the next calls.
    pub(super) fn behave(&self, behavior: Behavior) {
        let mut parts = self.parts();
        parts.lasting = behavior;
        parts.rules.clear();
    }

    /// Sets the behavior for selected calls; the latest matching rule applies.
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

    /// Records a call and applies its rule; returns whether to execute it.
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

impl<C> Parts<C> {
    fn lasting_for(&self, call: &C) -> &Behavior {
        let rule = self.rules.iter().find(|(when, _)| when(call));
        rule.map_or(&self.lasting, |(_, behavior)| behavior)
    }
}
