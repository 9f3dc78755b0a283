//! The status of the agent.

mod text;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use self::text::{line, text};
use crate::{
    counters::Counts,
    handover::report::RoleReport,
    housekeeping::LeftoverReport,
    model::{blocked::BlockedKind, pause::Paused},
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
    /// The kind of this reason.
    #[serde(default)]
    pub blocked_by: Option<BlockedKind>,
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
