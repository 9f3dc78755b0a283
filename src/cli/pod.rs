//! `why` and `timeline`: one pod of this node.

use clap::Args;

use super::{
    socket::{QueryFlags, SocketFlag},
    values::{PodName, TimelineFormat},
};
use crate::object_name::ObjectName;

/// Explain why a pod of this node, or any object that the collector knows, still exists, and what it waits for.
///
/// For a terminating pod of this node: its current step, the finished steps, and what it waits for, such as a busy mount with
/// pid, command and container of each holder, or the finalizers of its object.
///
/// For an object that the collector knows: whether it is being deleted and waits for its dependents (the finalizers
/// foregroundDeletion and orphan), blocks the deletion of an owner, or is kept because it is unknown whether its owner exists.
/// The answer follows the chain to the object that everything waits for, with its last failure.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Why is pod web-0 in namespace default still terminating?
  pod-teardown why default/web-0
  # An object that the garbage collector knows
  pod-teardown why Deployment.apps/default/web
  pod-teardown why Namespace/old
  # Any object by its UID
  pod-teardown why 0b9a8230-aace-4480-91d0-db24e46eb609

KIND may be the plural or a short name, as deploy, in any case; without .GROUP any group matches. Only the agent that \
collects knows objects that are no pods of its node; others name it.

Exit code: 0; 64 the command line is wrong; 1 no agent answers, or it does not know the object.")]
pub struct WhyArgs {
    /// The object: a pod, a UID, or kind and name.
    #[arg(value_name = "NS/POD|UID|KIND[.GROUP]/[NS/]NAME")]
    pub object: ObjectName,
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
  pod-teardown timeline default/web-0
  # Draw it as a picture
  pod-teardown timeline default/web-0 --format svg >web-0.svg

Exit code: 0; 64 the command line is wrong; 1 no agent answers, or it knows no termination of this pod.")]
pub struct TimelineArgs {
    /// The pod, as NAMESPACE/NAME.
    #[arg(value_name = "NS/POD")]
    pub pod: PodName,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = TimelineFormat::Text)]
    pub format: TimelineFormat,
    /// How to reach the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
}
