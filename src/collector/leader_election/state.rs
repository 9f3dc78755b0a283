//! State of the leader election: the conditions of the active role, when they expire, and the view for `gc status`.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::lease;
use crate::why::Why;

/// When this agent's collector may work: `--gc`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize, strum::Display)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Mode {
    /// While the collector of kube-controller-manager is not active.
    #[default]
    Auto,
    /// Whatever kube-controller-manager does.
    Always,
    /// Never.
    Never,
}

/// Role of this agent's collector, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The Lease of the agents' collectors. It is not read while kube-controller-manager works.
    pub lease: Option<LeaseView>,
    /// This agent certainly holds it now.
    #[serde(default)]
    pub holds_lease: bool,
    /// Error of the last request about it.
    pub lease_error: Option<String>,
    /// kube-controller-manager; read only with `--gc auto`.
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
    /// Error of the last read.
    pub error: Option<String>,
}

// === impl View ===

impl View {
    /// Records the Lease as it was read or written.
    pub(super) fn record_lease(&mut self, lease: Option<&Lease>) {
        let holder = lease::holder(lease).map(str::to_owned);
        let acquired = lease.and_then(|lease| lease.spec.as_ref()?.acquire_time.as_ref());
        self.lease = Some(LeaseView {
            is_own: holder.as_ref() == Some(&self.identity),
            holder,
            seen: Some(Timestamp::now()),
            since: acquired.map(|time| time.0),
        });
        self.lease_error = None;
    }
}

/// When a condition expires, or why it is not met. `None`: never, since the mode does not need the condition.
pub(super) type Condition = Result<Option<Instant>, Why>;

/// Conditions of the active role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conditions {
    /// kube-controller-manager does not work.
    pub manager_idle: Condition,
    /// This agent holds the Lease.
    pub lease: Condition,
    /// For `gc status`.
    pub view: View,
}

// === impl Conditions ===

impl Conditions {
    /// When the active role expires, or why it may not be active now.
    pub fn check(&self, now: Instant) -> Condition {
        let too_old = "the last read of kube-controller-manager's Lease is too old";
        let manager_idle = valid_until(&self.manager_idle, now, too_old)?;
        let lease = valid_until(&self.lease, now, "its Lease could not be renewed in time")?;
        Ok([lease, manager_idle].into_iter().flatten().min())
    }

    pub fn is_manager_idle(&self, now: Instant) -> bool {
        valid_until(&self.manager_idle, now, "").is_ok()
    }

    pub fn holds_lease(&self, now: Instant) -> bool {
        valid_until(&self.lease, now, "").is_ok()
    }
}

fn valid_until(condition: &Condition, now: Instant, expired: &str) -> Condition {
    match condition {
        Ok(Some(until)) if now >= *until => Err(expired.into()),
        condition => condition.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn active_role_lasts_while_both_conditions_do() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let until = |seconds| Ok(Some(at(seconds)));
        let no = |why: &str| Err(why.into());
        for (manager_idle, lease, now, expected) in [
            (until(20), until(10), 9, Ok(Some(at(10)))),
            (until(8), until(10), 7, Ok(Some(at(8)))),
            (Ok(None), until(10), 7, Ok(Some(at(10)))),
            (Ok(None), Ok(None), 900, Ok(None)),
            (until(20), until(10), 10, no("its Lease could not be renewed in time")),
            (
                until(8),
                until(10),
                8,
                no("the last read of kube-controller-manager's Lease is too old"),
            ),
            (no("it works"), no("another's"), 7, no("it works")),
            (until(10), no("another's"), 7, no("another's")),
        ] {
            let conditions = Conditions {
                manager_idle,
                lease,
                view: View::default(),
            };
            assert_eq!(conditions.check(at(now)), expected, "{conditions:?} at {now}");
        }
    }
}
