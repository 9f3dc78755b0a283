//! `stop`, `approve`, `pause`, `resume` and `handover`: they change what the agent does. The bodies of their requests are flags, too.

use std::time::Duration;

use clap::{Args, builder::NonEmptyStringValueParser};
use serde::{Deserialize, Serialize};

use super::{
    object::PodArg,
    output::SocketFlag,
    values::{duration, grace_period, pause_seconds, reason},
};

/// Stop a pod of this node now, as if it had been deleted. Its object stays, and its status shows how it terminated.
///
/// The command waits until no container of the pod runs and the API server shows that. If it is interrupted, the agent continues,
/// also after a restart. Only a kubelet that starts before the termination completes cancels it.
///
/// PodDisruptionBudgets are not checked, and a controller may start another pod: use this for a node that cannot wait, else
/// kubectl delete or kubectl drain. Mirror pods of static pods are refused, and all pods while a kubelet works on this node.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Stop pod db-0 in namespace shop within 5 seconds
  pod-teardown stop -n shop db-0 --grace-period 5")]
pub struct StopArgs {
    #[command(flatten)]
    pub pod: PodArg,
    /// The pod counts as failed, whatever its containers' exit codes are, with the condition DisruptionTarget (reason
    /// TerminationByKubelet), as when a kubelet evicts a pod. If this is repeated before the termination is finished, the last
    /// reason and message apply. A pod that has terminated before keeps its phase and reason.
    #[arg(long, requires = "reason", requires = "message")]
    pub failed: bool,
    #[command(flatten)]
    pub request: StopRequest,
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
    #[command(flatten)]
    pub socket: SocketFlag,
}

/// The body of a stop request. With a reason and a message, the pod counts as failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StopRequest {
    /// With --failed: reason in its status, one word such as Evicted.
    #[arg(long, value_name = "WORD", value_parser = reason, requires = "failed")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// With --failed: message in its status.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new(), requires = "failed")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Only if this is its UID.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Grace period instead of the pod's own: seconds, or a duration with a unit, such as 2m. For a terminating pod it can only
    /// shorten it.
    #[arg(long = "grace-period", value_name = "DURATION", value_parser = grace_period, allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<i64>,
}

/// The body of an approval request.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRequest {
    /// The name that `holds` shows; for a pod also its UID.
    #[arg(value_name = "ITEM", value_parser = NonEmptyStringValueParser::new())]
    pub item: String,
    /// Approve only if its present evidence has this digest.
    #[arg(long, value_name = "DIGEST")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Approve without a prompt.
    #[arg(long, short)]
    #[serde(skip)]
    pub yes: bool,
    /// Reason of the approval. It is logged, and `holds` shows it with the last approval.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The body of a pause request. An empty body is a pause without a limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PauseRequest {
    /// Duration of the pause, with a unit, such as 2h; at most 30 days [default: it lasts until `resume`].
    #[arg(long = "for", value_name = "DURATION", value_parser = pause_seconds)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<u64>,
    /// Reason of the pause.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Hand this node's pods over to a kubelet that is about to start.
///
/// For ExecStartPre= of kubelet.service. No work starts any more, and terminating pods reach a safe point. Then, or after the
/// timeout, the agent touches nothing until that kubelet is down again, or has not started within --take-over-after.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Hand the node over within one minute
  pod-teardown handover --timeout 60s

Exit code: always 0, also if no agent answers or the command line is wrong: it never prevents the start of a kubelet.")]
pub struct HandoverArgs {
    /// How long pods have to reach a safe point, with a unit, such as 60s. Pods that have not reached it are named: the
    /// kubelet repeats their hooks and grace periods. Choose less than TimeoutStartSec= of the unit.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub timeout: Duration,
    #[command(flatten)]
    pub socket: SocketFlag,
}
