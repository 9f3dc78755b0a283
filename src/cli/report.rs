//! `report`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::output::QueryFlags;
use crate::model::observation::Verdict;

/// Report how the kubelet terminated the pods of this node, compared with what the agent would have done.
///
/// An agent that runs with --mode observe touches nothing. It plans each termination when it begins. When the kubelet is done, it
/// compares the last status field by field, and what is left on the node. It shows the duration beside the grace period.
/// The first line counts the verdicts. The table lists all terminations that are not the same.
///
/// same: the agent would have written the same status, and nothing is left. different: another status; a difference that the
/// documentation explains is marked so. leftovers: the kubelet was done, and something of the pod is left on the node. unknown: not
/// all of it was seen, such as after a restart of the agent. The agent keeps 10,000 observations of the last 30 days.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # The last week
  pod-teardown report
  # The last hour, with each difference and leftover
  pod-teardown report --since 1h -o wide
  # Only those that left something
  pod-teardown report --verdict leftovers
  # For scripts
  pod-teardown report -o json | jq .verdicts

Exit code: 0; 64 the command line is wrong; 1 no agent answers, or it runs with --mode never.")]
pub struct ReportArgs {
    /// The time to report, such as 7d or 12h.
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = since)]
    pub since: Duration,
    /// List only terminations with this verdict.
    #[arg(long, value_enum)]
    pub verdict: Option<VerdictFlag>,
    /// How to ask the agent.
    #[command(flatten)]
    pub query: QueryFlags,
}

/// `--verdict`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VerdictFlag {
    /// The agent would have done the same.
    Same,
    /// The agent would have written another status.
    Different,
    /// Something of the pod is left on the node.
    Leftovers,
    /// Not all of it was seen.
    Unknown,
}

// === impl VerdictFlag ===

impl From<VerdictFlag> for Verdict {
    fn from(flag: VerdictFlag) -> Self {
        match flag {
            VerdictFlag::Same => Self::Same,
            VerdictFlag::Different => Self::Different,
            VerdictFlag::Leftovers => Self::Leftovers,
            VerdictFlag::Unknown => Self::Unknown,
        }
    }
}

fn since(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| format!("{error}; use a unit, such as 7d"))?;
    match duration.as_secs() {
        0 => Err("it is shorter than one second".to_owned()),
        _ => Ok(duration),
    }
}
