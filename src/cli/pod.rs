//! `why` and `timeline`: one pod of this node.

use clap::Args;

use super::{
    object::PodArg,
    output::{QueryFlags, SocketFlag, TimelineFormat},
};

/// Explain why a pod of this node still exists, and what it waits for.
///
/// For a terminating pod of this node: its current step, the finished steps, and what it waits for, such as a busy mount with
/// pid, command and container of each holder, or the finalizers of its object. The answer contains what the garbage collector
/// knows of the pod.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Why is pod web-0 in namespace default still terminating?
  pod-teardown why web-0
  # The same for a pod in namespace shop
  pod-teardown why -n shop db-0
  pod-teardown why shop/db-0
  # By its UID
  pod-teardown why 0b9a8230-aace-4480-91d0-db24e46eb609

For other objects see gc why.

Exit code: 0; 64 the command line is wrong; 1 no agent answers, or it does not know the pod.")]
pub struct WhyArgs {
    /// The pod.
    #[command(flatten)]
    pub pod: PodArg,
    /// How to ask the agent.
    #[command(flatten)]
    pub query: QueryFlags,
}

/// Show the timeline of a pod's termination: each step as a bar over time.
///
/// The agent remembers the last 256 terminations since its start.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Show the timeline of pod web-0 in namespace default
  pod-teardown timeline web-0
  # Draw it as a picture
  pod-teardown timeline web-0 -o svg > web-0.svg

Exit code: 0; 64 the command line is wrong; 1 no agent answers, or it knows no termination of this pod.")]
pub struct TimelineArgs {
    /// The pod.
    #[command(flatten)]
    pub pod: PodArg,
    /// How to print it.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = TimelineFormat::Table)]
    pub output: TimelineFormat,
    /// How to reach the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
}
