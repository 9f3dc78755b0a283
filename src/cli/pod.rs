//! `why`, `plan` and `timeline`: one pod of this node.

use clap::Args;

use super::{
    object::{OptionalPodArg, PodArg},
    output::{PlainQueryFlags, QueryFlags, SocketFlag, TimelineFormat},
};

/// Explain why a pod of this node still exists, and what it waits for.
///
/// For a pod that this agent terminates: its current step, the finished steps, and what it waits for. For a busy mount it shows the
/// PID, the command and the container of each holder.
///
/// For any pod, also beside a living kubelet: what it waits for, most urgent first, each with a remedy. This can be a process that
/// ignores SIGTERM, is frozen, or is in uninterruptible sleep. It can be a sandbox, the network plugin, or a missing CSI or DRA
/// driver. It can be a mount that a process outside of the pod uses, the phase, or a finalizer, with the component that usually
/// removes it. The node is only read. What cannot be read in time is reported as unknown. The answer contains what the garbage
/// collector knows of the pod.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Why is pod web-0 in namespace default still terminating?
  pod-teardown why web-0
  # The same for a pod in namespace shop
  pod-teardown why -n shop db-0
  pod-teardown why shop/db-0
  # By its UID
  pod-teardown why 0b9a8230-aace-4480-91d0-db24e46eb609
  # Again at each change, until it is gone
  pod-teardown why web-0 -w

For other objects see gc why.

Exit code: 0; 64 the command line is wrong; 1 no agent answers, or it does not know the pod.")]
pub struct WhyArgs {
    /// The pod.
    #[command(flatten)]
    pub pod: PodArg,
    /// Print it again at each change, until the pod is gone or until Ctrl-C. On a terminal it is redrawn in place.
    #[arg(short, long)]
    pub watch: bool,
    /// How to ask the agent.
    #[command(flatten)]
    pub query: PlainQueryFlags,
}

/// Show what the agent would do to take a pod down now, step by step. Nothing is changed.
///
/// Lists hooks, containers in the order of their stops, sandboxes, claims, volumes and how each is unmounted, and cgroups. Then
/// follow the status that would be reported, the final delete and the cleanup. Each step has IDs and paths. Lines before the steps
/// show what blocks them now, such as a living kubelet or a safety hold, and which pods a driver waits for. They also show
/// whether the pod is being deleted. A pod that is not being deleted is left alone: its plan shows what a deletion would cause.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # What would be done to pod web-0 in namespace default?
  pod-teardown plan web-0
  # With the paths of its cgroup in each hierarchy
  pod-teardown plan web-0 -o wide
  # The same as JSON, for scripts
  pod-teardown plan web-0 -o json

Exit code: 0; 64 the command line is wrong; 1 no agent answers, or it does not know the pod.")]
pub struct PlanArgs {
    /// The pod.
    #[command(flatten)]
    pub pod: PodArg,
    /// How to ask the agent.
    #[command(flatten)]
    pub query: QueryFlags,
}

/// Show the timeline of a pod's termination: each step as a bar over time. Without a pod, list the known terminations.
///
/// The agent remembers the last 256 terminations since its start. A line shows the end of the grace period, if the termination
/// takes so long.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # List the known terminations
  pod-teardown timeline
  # Show the timeline of pod web-0 in namespace default
  pod-teardown timeline web-0
  # With the duration of each attempt
  pod-teardown timeline web-0 -o wide
  # Follow the termination until it is finished
  pod-teardown timeline -f web-0
  # Draw it as a picture
  pod-teardown timeline web-0 -o svg > web-0.svg

Exit code: 0; 64 the command line is wrong; 1 no agent answers, or it knows no termination of this pod.")]
pub struct TimelineArgs {
    /// The pod.
    #[command(flatten)]
    pub pod: OptionalPodArg,
    /// Wait until the termination is finished. A terminal shows each change, anything else only the result.
    #[arg(short, long)]
    pub follow: bool,
    /// How to print it.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = TimelineFormat::Table)]
    pub output: TimelineFormat,
    /// How to reach the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
}
