//! `why`, `plan`, `timeline` and `report`: the pods of this node.

use std::time::Duration;

use clap::Args;

use super::{
    object::{DEFAULT_NAMESPACE, PodArg, UsageError, parse_pod},
    output::{QueryFlags, SocketFlag, TimelineFormat},
    values::since,
};
use crate::model::observation::Verdict;

/// A pod, and how to ask the agent about it.
#[derive(Debug, Clone, Args)]
pub struct PodQueryArgs {
    #[command(flatten)]
    pub pod: PodArg,
    #[command(flatten)]
    pub query: QueryFlags,
}

/// Show the timeline of a pod's termination: each step as a bar over time. Without a pod, list the known terminations.
///
/// The agent remembers the last 256 terminations since its start. With -o wide each attempt has its own line.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Show the timeline of pod web-0 in namespace default
  pod-teardown timeline web-0

  # Draw it for a browser
  pod-teardown timeline web-0 -o svg > web-0.svg")]
pub struct TimelineArgs {
    /// The pod: its name, NAMESPACE/NAME, or its UID [default: all].
    #[arg(value_name = "POD")]
    pod: Option<String>,
    /// Namespace of the pod [default: default].
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// How to print the answer.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = TimelineFormat::Table)]
    pub output: TimelineFormat,
    #[command(flatten)]
    pub socket: SocketFlag,
}

// === impl TimelineArgs ===

impl TimelineArgs {
    /// The pod, if there is one.
    ///
    /// # Errors
    /// As [`PodArg::id`].
    pub fn id(&self) -> Result<Option<String>, UsageError> {
        let id = |pod: &String| parse_pod(pod, self.namespace.as_deref(), DEFAULT_NAMESPACE);
        self.pod.as_ref().map(id).transpose()
    }
}

/// Report how the kubelet terminated the pods of this node, compared with what the agent would have done.
///
/// The first line counts the verdicts. The table lists all terminations that are not the same. Observed are an agent's terminations
/// with --mode observe; the agent keeps 10,000 observations of the last 30 days.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # The last hour, with each difference and leftover
  pod-teardown report --since 1h -o wide")]
pub struct ReportArgs {
    /// The time to report, such as 7d or 12h.
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = since)]
    pub since: Duration,
    /// List only terminations with this verdict.
    #[arg(long, value_enum)]
    pub verdict: Option<Verdict>,
    #[command(flatten)]
    pub query: QueryFlags,
}
