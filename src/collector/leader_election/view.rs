//! State of the leader election for `gc status`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::lease::LeaseState;
use super::mode::Mode;
use crate::api::ApiError;

/// Role of this agent's collector, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// This agent's identity.
    pub identity: String,
    /// `--gc`.
    pub mode: Mode,
    /// Start of the active role, if it is active.
    pub active_since: Option<Timestamp>,
    /// Why it is standby, if it is.
    pub standby: Option<String>,
    /// The Lease of the agents' collectors.
    pub lease: Option<LeaseView>,
    /// This agent certainly holds it now.
    #[serde(default)]
    pub holds_lease: bool,
    /// Error of the last request about it.
    pub lease_error: Option<String>,
    /// kube-controller-manager; read only by the holder of the Lease, with `--gc auto`.
    pub controller_manager: Option<ManagerView>,
}

/// The Lease of the agents' collectors, as last seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LeaseView {
    /// Its holder, if any.
    pub holder: Option<String>,
    /// The holder is this agent.
    pub is_own: bool,
    /// When it was last read or written.
    #[serde(default)]
    pub seen: Option<Timestamp>,
    /// The holder is standby: an agent with `--gc always` takes it.
    #[serde(default)]
    pub on_standby: bool,
    /// When the holder acquired it, by the holder's clock.
    pub since: Option<Timestamp>,
}

/// kube-controller-manager's Lease, as this agent has seen it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ManagerView {
    /// Its holder, if any.
    pub holder: Option<String>,
    /// When it was last seen to change.
    pub changed: Option<Timestamp>,
    /// When it was last read.
    pub read: Option<Timestamp>,
    /// Error of the last read.
    pub error: Option<String>,
}

/// The recorded parts of a [`View`].
#[derive(Debug, Default)]
pub(super) struct StatusRecord(Mutex<Recorded>);

#[derive(Debug, Default, Clone)]
pub(super) struct Recorded {
    pub active_since: Option<Timestamp>,
    pub lease: Option<LeaseView>,
    pub lease_error: Option<String>,
    pub manager: Option<ManagerView>,
}

// === impl StatusRecord ===

impl StatusRecord {
    pub fn all(&self) -> Recorded {
        self.recorded().clone()
    }

    pub fn set_active_since(&self, since: Option<Timestamp>) {
        self.recorded().active_since = since;
    }

    pub fn record_lease(&self, state: &LeaseState, identity: &str) {
        let view = match state {
            LeaseState::Absent => LeaseView::default(),
            LeaseState::Present(record) => LeaseView {
                holder: non_empty(&record.holder),
                is_own: record.holder == identity,
                on_standby: record.is_standby,
                since: record.acquired.parse().ok(),
                seen: None,
            },
        };
        let mut recorded = self.recorded();
        recorded.lease = Some(LeaseView {
            seen: Some(Timestamp::now()),
            ..view
        });
        recorded.lease_error = None;
    }

    pub fn record_lease_error(&self, error: &ApiError) {
        self.recorded().lease_error = Some(error.to_string());
    }

    pub fn update_manager(&self, change: impl FnOnce(&mut ManagerView)) {
        change(self.recorded().manager.get_or_insert_default());
    }

    /// kube-controller-manager's Lease is not read any more.
    pub fn clear_manager(&self) {
        self.recorded().manager = None;
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn non_empty(holder: &str) -> Option<String> {
    (!holder.is_empty()).then(|| holder.to_owned())
}
