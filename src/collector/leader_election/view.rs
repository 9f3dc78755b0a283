//! What people are told of whose turn it is.

use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::lease::Sight;
use crate::{api::ApiError, collector::Mode};

/// Whose turn it is to collect, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// What this agent calls itself.
    pub identity: String,
    /// `--gc`.
    pub mode: Mode,
    /// It would collect nothing, needs no turn, and asks nobody.
    pub dry_run: bool,
    /// Since when this agent's collector works, if it does.
    pub works_since: Option<Timestamp>,
    /// Why it stands by, if it does.
    pub stands_by: Option<String>,
    /// The Lease of the agents' collectors.
    pub lease: Option<LeaseView>,
    /// It is this agent's at this moment, for certain.
    #[serde(default)]
    pub holds_lease: bool,
    /// Why the last request about it failed, if it did.
    pub lease_error: Option<String>,
    /// kube-controller-manager, asked only by the agent that holds the Lease, with `--gc auto`.
    pub controller_manager: Option<ManagerView>,
}

/// The Lease of the agents' collectors, as last seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseView {
    /// Who holds it; nothing if nobody does.
    pub holder: Option<String>,
    /// It was this agent.
    pub is_own: bool,
    /// When it was last seen, or written.
    #[serde(default)]
    pub seen: Option<Timestamp>,
    /// The holder stands by: an agent with `--gc always` takes it over.
    #[serde(default)]
    pub stands_by: bool,
    /// Since when, by the holder's clock.
    pub since: Option<Timestamp>,
}

/// kube-controller-manager's Lease, as this agent has seen it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagerView {
    /// Who holds it; nothing if there is no Lease, or nobody holds it.
    pub holder: Option<String>,
    /// When it was last seen to change.
    pub changed: Option<Timestamp>,
    /// When it was last looked at.
    pub looked: Option<Timestamp>,
    /// Why the last look failed, if it did.
    pub error: Option<String>,
}

/// The parts of a [`View`] that are written down as they are seen.
#[derive(Debug, Default)]
pub(super) struct Notes(Mutex<Noted>);

#[derive(Debug, Default, Clone)]
pub(super) struct Noted {
    pub works_since: Option<Timestamp>,
    pub lease: Option<LeaseView>,
    pub lease_error: Option<String>,
    pub manager: Option<ManagerView>,
}

// === impl Notes ===

impl Notes {
    pub fn all(&self) -> Noted {
        self.noted().clone()
    }

    pub fn works(&self, since: Option<Timestamp>) {
        self.noted().works_since = since;
    }

    pub fn lease_seen(&self, sight: &Sight, identity: &str) {
        let view = match sight {
            Sight::Absent => LeaseView::default(),
            Sight::Present(record) => LeaseView {
                holder: named(&record.holder),
                is_own: record.holder == identity,
                stands_by: record.stands_by,
                since: record.acquired.parse().ok(),
                seen: None,
            },
        };
        let mut noted = self.noted();
        noted.lease = Some(LeaseView {
            seen: Some(Timestamp::now()),
            ..view
        });
        noted.lease_error = None;
    }

    pub fn lease_failed(&self, error: &ApiError) {
        self.noted().lease_error = Some(error.to_string());
    }

    pub fn manager(&self, change: impl FnOnce(&mut ManagerView)) {
        change(self.noted().manager.get_or_insert_default());
    }

    /// Nobody is asked any more.
    pub fn not_asked(&self) {
        self.noted().manager = None;
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn named(holder: &str) -> Option<String> {
    (!holder.is_empty()).then(|| holder.to_owned())
}
