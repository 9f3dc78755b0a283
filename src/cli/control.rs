//! `holds`, `approve`, `pause`, `resume` and `handover`: whether the agent may act.

use std::time::Duration;

use clap::Args;

use super::{output::SocketFlag, values::pause_duration};

/// Approve one safety hold that `holds` shows. The agent then does what the hold has blocked.
///
/// On a terminal the command shows the hold and asks before it approves. Elsewhere it needs --yes.
///
/// An approval covers the present evidence, or with --digest the evidence that `holds` has shown. If it has changed, nothing
/// is approved. New evidence is blocked again. The approval and the user who gave it are logged, and a restart of the agent keeps
/// it.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Show the hold, ask, and treat the pods that a list lacks as deleted
  pod-teardown approve absence --reason 'etcd was restored, the pods are deleted'
  # Approve the hold of one pod in a script, if its evidence is unchanged
  pod-teardown approve pod/default/web-0 --digest 9f86d081884c7d65 --yes
  pod-teardown approve 0b9a8230-aace-4480-91d0-db24e46eb609

Exit code: 0 it is approved; 64 the command line is wrong, or --yes is missing without a terminal; 1 any other failure. \
That is an unknown hold (the message lists all), the answer no, or no agent that answers.")]
pub struct ApproveArgs {
    /// The name that `holds` shows; for a pod also its UID.
    #[arg(value_name = "ITEM", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub item: String,
    /// Approve only if its present evidence has this digest.
    #[arg(long, value_name = "DIGEST")]
    pub digest: Option<String>,
    /// Approve without a prompt.
    #[arg(long, short)]
    pub yes: bool,
    /// Reason of the approval. It is logged, and `holds` shows it with the last approval.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub reason: Option<String>,
    /// How to reach the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
}

/// Start no work on this node until `resume`, or for a limited time. A restart or a reboot does not end the pause.
///
/// Terminating pods reach a safe point, where no call is in progress and all their containers are stopped, and stay there; a
/// grace period continues to run. Deleted pods are noticed, and wait. `stop` is refused. The garbage collector
/// continues, because it works for the whole cluster.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Pause the agent of this node until resume
  pod-teardown pause
  # Pause it for two hours
  pod-teardown pause --for 2h --reason 'storage maintenance'

A second pause replaces the duration and the reason of the first. status shows who has paused the agent, since when, until when \
and why.

Exit code: 0 it is paused; 64 the command line is wrong; 1 no agent answers.")]
pub struct PauseArgs {
    /// Duration of the pause, with a unit, such as 2h; at most 30 days [default: it lasts until `resume`].
    #[arg(long = "for", value_name = "DURATION", value_parser = pause_duration)]
    pub duration: Option<Duration>,
    /// Reason of the pause.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub reason: Option<String>,
    /// How to reach the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
}

/// End a pause. Waiting work continues.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # End the pause
  pod-teardown resume

Exit code: 0 it is not paused; 64 the command line is wrong; 1 no agent answers.")]
pub struct ResumeArgs {
    /// How to reach the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
}

/// Hand this node's pods over to a kubelet that is about to start.
///
/// For ExecStartPre= of kubelet.service. No work starts any more. Terminating pods reach a safe point: all their containers
/// are stopped, no call is in progress, and requests of `stop` are finished in the API. A failed stop is repeated once.
/// Then, or after the timeout, the agent touches nothing until that kubelet is down again, or has not started within
/// --take-over-after.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Hand the node over within one minute
  pod-teardown handover --timeout 60s

Exit code: always 0, also if no agent answers or the command line is wrong: it never prevents the start of a kubelet.")]
pub struct HandoverArgs {
    /// How long pods have to reach a safe point, with a unit, such as 60s. Pods that have not reached it are named: the
    /// kubelet repeats their hooks and grace periods. Choose less than TimeoutStartSec= of the unit.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = super::values::duration)]
    pub timeout: Duration,
    /// How to reach the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
}
