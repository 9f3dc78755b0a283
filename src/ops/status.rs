//! The status of the agent.

mod text;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use self::text::{line, text};
use crate::{
    counters::Counts,
    handover::{
        report::RoleReport,
        role::{RoleName, StandbyReasonName},
    },
    housekeeping::LeftoverReport,
    journal::paused::Paused,
    model::trace::BlockedReason,
    node::runtime::RuntimeReport,
    watch::WatchReport,
    workers::Overview,
};

/// The status of the agent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// The agent's version.
    pub version: String,
    /// Its process ID.
    pub pid: u32,
    /// When it was started.
    pub since: Timestamp,
    /// Its node.
    pub node: String,
    /// Number of panics since the start.
    #[serde(default)]
    pub panics: u64,
    /// Log lines that were dropped, because the journal or standard error was too slow.
    #[serde(default)]
    pub log_lines_dropped: u64,
    /// Whether it takes pods down. Without that, most of the following fields are empty.
    pub takes_pods: bool,
    /// The garbage collector; `None` if this agent has none.
    #[serde(default)]
    pub collector: Option<CollectorReport>,
    /// The role; `None` without `--mode auto`.
    #[serde(default)]
    pub role: Option<RoleReport>,
    /// Why the agent may not act at the moment.
    pub blocked: Option<String>,
    /// Whether the reason is that the Node has another UID than the recorded one. An operator can approve it.
    #[serde(default)]
    pub node_uid_mismatch: bool,
    /// When the node's credentials expire, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_expire: Option<Timestamp>,
    /// The pause, if the agent is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    /// The container runtime.
    pub runtime: RuntimeReport,
    /// The watch of this node's pods.
    pub watch: WatchReport,
    /// Leftovers of deleted pods on this node.
    #[serde(default)]
    pub housekeeping: LeftoverReport,
    /// Terminating pods.
    pub pods: Overview,
    /// Why the journal cannot be written, if it cannot.
    #[serde(default)]
    pub journal_error: Option<String>,
    /// Quarantined journal files, until an operator deletes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined_files: Vec<String>,
    /// Counters since the start.
    pub counters: Counts,
}

/// Summary of the collector; `gc status` has the details.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CollectorReport {
    /// Why it is on standby; `None` while it is active.
    pub standby: Option<String>,
    /// Why not all kinds are synced; `None` if they are.
    pub not_synced: Option<String>,
}

/// Whether something is blocked that should not be: by a safety hold, a pause or a failure of a pod, or because the agent may not
/// act although no kubelet works.
pub fn is_blocked(report: &StatusReport) -> bool {
    let reason = report.role.as_ref().and_then(|role| role.reason);
    let observes = report
        .role
        .as_ref()
        .is_some_and(|role| role.role == RoleName::Observing);
    let may_not_act = report.blocked.is_some() && reason != Some(StandbyReasonName::KubeletAlive) && !observes;
    let mut blocked = report.pods.terminating.iter().flat_map(|trace| &trace.blocked);
    report.node_uid_mismatch
        || report.watch.absence_hold.is_some()
        || report.paused.is_some()
        || may_not_act
        || blocked.any(|blocked| blocked.reason != BlockedReason::Guard)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{
        handover::role::RoleName,
        model::trace::{Blocked, Trace},
    };

    #[test]
    fn only_a_living_kubelet_blocks_without_a_need_for_action() {
        let status = |change: fn(&mut StatusReport)| {
            let mut report = StatusReport::default();
            change(&mut report);
            is_blocked(&report)
        };
        assert!(!status(|_| {}));
        let standby = |report: &mut StatusReport, reason| {
            report.blocked = Some("standby".to_owned());
            report.role = Some(RoleReport {
                role: RoleName::Standby,
                reason: Some(reason),
                ..RoleReport::default()
            });
        };
        for (reason, expected) in [
            (StandbyReasonName::KubeletAlive, false),
            (StandbyReasonName::KubeletUnresponsive, true),
            (StandbyReasonName::TakeoverPending, true),
        ] {
            let mut report = StatusReport::default();
            standby(&mut report, reason);
            let guarded = Blocked::pod(BlockedReason::Guard, "a kubelet works");
            report.pods.terminating = vec![Trace {
                blocked: vec![guarded],
                ..Trace::sample()
            }];
            assert_eq!(is_blocked(&report), expected, "{reason}");
        }
        assert!(status(|it| it.blocked = Some("another node".to_owned())));
        assert!(status(|it| it.node_uid_mismatch = true));
        assert!(status(|it| it.watch.absence_hold = Some("empty".to_owned())));
        assert!(status(|it| it.paused = Some(Paused {
            since: Timestamp::UNIX_EPOCH,
            by: String::new(),
            reason: None,
            until: None,
        })));
        assert!(status(|it| {
            let busy = Blocked::pod(BlockedReason::Failed, "busy");
            it.pods.terminating = vec![Trace {
                blocked: vec![busy],
                ..Trace::sample()
            }];
        }));
    }
}
