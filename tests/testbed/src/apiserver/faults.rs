//! Faults on request: the requests that they affect, how often, and their effect.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::requests::Asked;

/// Trouble for some requests. An empty field meets every request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: Option<String>,
    /// `pods`, `pods/status`, …
    pub resource: Option<String>,
    pub name: Option<String>,
    pub user: Option<String>,
    /// How many requests it meets; without a number, all until it is cleared.
    pub times: Option<u32>,
    /// Its effect.
    pub action: Action,
}

/// Effect of a fault on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Close the connection without an answer or effect.
    Refuse,
    /// Execute the request, and close the connection without an answer.
    LoseResponse,
    /// Wait, then go on as usual.
    Delay {
        /// How long.
        millis: u64,
    },
    /// Answer with this code, without effect.
    Status {
        /// HTTP status code.
        code: u16,
        retry_after: Option<u64>,
    },
    /// Answer a list or a new watch like kube-apiserver 1.37.2 after the key of Secret default/lost was removed from its
    /// encryption configuration.
    LoseKey,
    /// End a watch, running or new, like a broken connection.
    CutWatch,
    /// End a watch, running or new, with the error of an object that cannot be read from the store.
    FailWatch,
    /// Let a watch, running or new, hang: it sends nothing more and does not end.
    StallWatch,
    /// Let a watch, running or new, wait before its next event.
    PauseWatch {
        /// How long.
        millis: u64,
    },
}

/// The faults in force. Clones share them.
#[derive(Debug, Clone)]
pub struct Faults {
    inner: Arc<Mutex<Vec<Fault>>>,
    changed: watch::Sender<()>,
}

impl Fault {
    /// Trouble for every request, until narrowed.
    pub fn new(action: Action) -> Self {
        Fault {
            verb: None,
            resource: None,
            name: None,
            user: None,
            times: None,
            action,
        }
    }

    /// The next requests wait.
    pub fn delay(by: Duration) -> Self {
        Fault::new(Action::Delay {
            millis: u64::try_from(by.as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// The next requests are answered with `code`.
    pub fn status(code: u16) -> Self {
        Fault::new(Action::Status {
            code,
            retry_after: None,
        })
    }

    /// The next requests are answered with 429 and Retry-After.
    pub fn too_many(retry_after: u64) -> Self {
        Fault::new(Action::Status {
            code: 429,
            retry_after: Some(retry_after),
        })
    }

    #[must_use]
    pub fn verb(mut self, verb: &str) -> Self {
        self.verb = Some(verb.to_owned());
        self
    }

    /// Only for this resource; a subresource counts separately.
    #[must_use]
    pub fn resource(mut self, resource: &str) -> Self {
        self.resource = Some(resource.to_owned());
        self
    }

    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
        self
    }

    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    #[must_use]
    pub fn once(self) -> Self {
        self.times(1)
    }

    fn meets(&self, asked: &Asked) -> bool {
        let fits = |wanted: &Option<String>, given: &str| wanted.as_deref().is_none_or(|wanted| wanted == given);
        fits(&self.verb, &asked.verb)
            && fits(&self.resource, &asked.resource)
            && fits(&self.name, &asked.name)
            && fits(&self.user, &asked.user)
    }
}

impl Action {
    fn is_for_watches(&self) -> bool {
        matches!(
            self,
            Action::CutWatch | Action::FailWatch | Action::StallWatch | Action::PauseWatch { .. }
        )
    }
}

impl Default for Faults {
    fn default() -> Self {
        Faults {
            inner: Arc::default(),
            changed: watch::Sender::new(()),
        }
    }
}

impl Faults {
    /// Puts a fault in force, behind those that are.
    pub fn inject(&self, fault: Fault) {
        self.with(|faults| faults.push(fault));
        self.changed.send_replace(());
    }

    /// Ends all faults. Hanging watches keep hanging.
    pub fn clear(&self) {
        self.with(Vec::clear);
    }

    /// The faults that are still in force.
    pub fn pending(&self) -> Vec<Fault> {
        self.with(|faults| faults.clone())
    }

    /// Wakes running watches when a fault is put in force.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The fault that meets a request before it is done, counted down.
    pub(super) fn for_request(&self, asked: &Asked) -> Option<Action> {
        self.take(asked, |action| !action.is_for_watches())
    }

    /// The fault that meets a watch while it runs, counted down.
    pub(super) fn for_watch(&self, asked: &Asked) -> Option<Action> {
        self.take(asked, Action::is_for_watches)
    }

    fn take(&self, asked: &Asked, wanted: impl Fn(&Action) -> bool) -> Option<Action> {
        self.with(|faults| {
            let index = faults
                .iter()
                .position(|fault| wanted(&fault.action) && fault.meets(asked))?;
            let action = faults[index].action.clone();
            if let Some(times) = &mut faults[index].times {
                *times = times.saturating_sub(1);
                if *times == 0 {
                    faults.remove(index);
                }
            }
            Some(action)
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Vec<Fault>) -> T) -> T {
        act(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
