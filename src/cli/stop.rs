//! `stop`.

use std::time::Duration;

use clap::Args;

use super::{
    object::PodArg,
    output::SocketFlag,
    values::{duration, grace_period, reason},
};

/// Stop a pod of this node now, as if it had been deleted. Its object stays, and its status shows how it terminated.
///
/// Its preStop hooks run, and its containers are stopped within the grace period. The command waits until no container of the
/// pod runs and the API server shows that. It prints what blocks the termination, and the result. If the command is
/// interrupted or its --timeout expires, the agent continues, also after a restart of the agent. Only a kubelet that starts
/// before the termination completes cancels it. A pod that has terminated before does not change.
///
/// PodDisruptionBudgets are not checked, and a controller may start another pod: use this for a node that cannot wait, else
/// kubectl delete or kubectl drain. Mirror pods of static pods are refused, and all pods while a kubelet works on this node.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Stop pod web-0 in namespace default with its own grace period
  pod-teardown stop web-0
  # Stop pod db-0 in namespace shop within 5 seconds
  pod-teardown stop -n shop db-0 --grace-period 5
  # Stop the pod with this UID
  pod-teardown stop 0b9a8230-aace-4480-91d0-db24e46eb609
  # Do not wait for the result
  pod-teardown stop web-0 --wait=false
  # Stop it as Failed, as when a kubelet evicts a pod
  pod-teardown stop web-0 --failed --reason Evicted --message 'The node runs out of disk.'

The output says how the pod has terminated.

Exit code: 0 it has terminated, now or before, or with --wait=false the request is accepted; 64 the command line is wrong; 1 \
any other failure. That is a refused or canceled request, an expired --timeout, or no agent that answers.")]
pub struct StopArgs {
    /// The pod.
    #[command(flatten)]
    pub pod: PodArg,
    /// The pod counts as failed, whatever its containers' exit codes are, with the condition DisruptionTarget (reason
    /// TerminationByKubelet), as when a kubelet evicts a pod. If this is repeated before the termination is finished, the last
    /// reason and message apply. A pod that has terminated before keeps its phase and reason.
    #[arg(long, requires = "reason", requires = "message")]
    pub failed: bool,
    /// With --failed: reason in its status, one word such as Evicted.
    #[arg(long, value_name = "WORD", value_parser = reason, requires = "failed")]
    pub reason: Option<String>,
    /// With --failed: message in its status.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new(), requires = "failed")]
    pub message: Option<String>,
    /// Only if this is its UID.
    #[arg(long)]
    pub uid: Option<String>,
    /// Grace period instead of the pod's own: seconds, or a duration with a unit, such as 2m. For a terminating pod it can only
    /// shorten it.
    #[arg(long, value_name = "DURATION", value_parser = grace_period, allow_negative_numbers = true)]
    pub grace_period: Option<i64>,
    /// How long to wait for the termination, with a unit, such as 60s. Then the command fails, and the stop continues
    /// [default: without a limit].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Wait until the pod has terminated.
    #[arg(
        long,
        value_name = "true|false",
        default_value_t = true,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        action = clap::ArgAction::Set
    )]
    pub wait: bool,
    /// How to reach the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
}
