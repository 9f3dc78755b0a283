//! `status` and `version`.

use clap::Args;

use super::output::QueryFlags;

/// Show the role of the agent of this node, and the terminating pods.
///
/// The first lines show the role with its reason, the probes of the kubelet, the runtime and the API server. Other lines appear
/// only if there is something to show. Blocked is the reason why nothing may be touched; beside a living kubelet that is normal.
/// Paused shows who has paused the agent. Unmanaged lists pods and files without proof that they belong to the API
/// server; they are not touched. The table lists the terminating pods, each with its step and what it waits for. A pod without a
/// step is left to the kubelet, or waits for the takeover. AGE counts from the moment when this agent learned of the termination.
/// GRACE is what is left of the grace period: (kubelet) marks the kubelet's, and (not begun) one that this agent has not begun.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Show the status
  pod-teardown status
  # Show it again at each change, with UIDs and attempts
  pod-teardown status -w -o wide
  # The role as JSON, for scripts
  pod-teardown status -o json | jq .role

Exit code: 0; 64 the command line is wrong; 1 no agent answers. With --exit-code also 2: something is blocked, which is a \
safety hold, a pod that waits, a pause, or an agent that may not act although no kubelet works.")]
pub struct StatusArgs {
    /// Print it again at each change, until Ctrl-C. On a terminal it is redrawn in place.
    #[arg(short, long, conflicts_with = "exit_code")]
    pub watch: bool,
    /// Exit with code 2 if something is blocked.
    #[arg(long)]
    pub exit_code: bool,
    /// How to ask the agent.
    #[command(flatten)]
    pub query: QueryFlags,
}
