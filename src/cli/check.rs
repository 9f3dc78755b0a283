//! `check`.

use std::time::Duration;

use clap::Args;

use super::{node::NodeFlags, output::OutputFormat};

/// Check whether the agent can work on this node: configuration, API server, rights, runtime, kubelet, journal. Changes nothing.
///
/// Each row that is not ok has a remedy, and a section in the runbook. The last line is the verdict.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Check with the settings of the systemd service
  pod-teardown check --service
  # Check with the kubelet's credentials
  pod-teardown check --kubeconfig /etc/kubernetes/kubelet.conf --kubelet-config /var/lib/kubelet/config.yaml
  # Wait until the node is ready, for at most one minute
  pod-teardown check --wait 60s
  # The IDs of the failed rows
  pod-teardown check -o json | jq -r '.checks[] | select(.result == \"failed\") | .id'

Exit code: 0 the agent can work here; 64 the command line is wrong; 78 the configuration is wrong or incomplete; 69 API server \
or runtime unreachable; 1 any other failure. The first of these applies.")]
pub struct CheckArgs {
    /// Repeat the checks until the agent can work here, for at most this time, with a unit, such as 60s.
    #[arg(long, value_name = "DURATION", value_parser = super::values::duration)]
    pub wait: Option<Duration>,
    /// Use the settings of pod-teardown.service: its command line, its environment file and its drop-ins, as loaded by systemd. Flags of this command override them.
    #[arg(long)]
    pub service: bool,
    /// How to print the result.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    pub output: OutputFormat,
    /// Settings of the agent.
    #[command(flatten)]
    pub node: NodeFlags,
}
