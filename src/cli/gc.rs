//! `gc`: the garbage collector of owner references.

use clap::{Args, Subcommand};

use super::{
    socket::{QueryFlags, SocketFlag},
    values::GraphFormat,
};

/// The verbs of `gc`.
#[derive(Debug, Clone, Subcommand)]
pub enum GcVerb {
    /// Show the state of the collector: its role, each kind, its queues, what waits longest and why, what is kept.
    #[command(after_help = "Examples:
  # Show the state of the collector
  pod-teardown gc status
  # Its state as JSON, for scripts
  pod-teardown gc status --json | jq .work

Exit code: 0; 64 the command line is wrong; 1 no agent answers, or it does not collect.")]
    Status(QueryFlags),
    /// Draw objects with their owners and dependents as the collector knows them, and its decision on each.
    Graph(GraphArgs),
}

/// Draw objects with their owners and dependents as the collector knows them, and its decision on each.
///
/// With a UID: all objects that are connected with that object, nearest first. Without: all active objects and those
/// connected with them. Active are objects that are being deleted or wait for others, and owners that do not exist or are
/// unknown. At most 200 objects are drawn; the picture names the number of the others. An arrow leads from a dependent to its
/// owner; a red arrow blocks the deletion of the owner.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Draw all active objects
  pod-teardown gc graph --format svg > picture.svg
  pod-teardown gc graph | dot -Tpng > picture.png
  # Draw the objects around one object
  pod-teardown gc graph --uid $(kubectl get deployment web -o jsonpath={.metadata.uid}) --format svg > web.svg
  # List blocked objects
  pod-teardown gc graph --format json | jq '.objects[] | select(.look == \"blocked\")'

Only the agent that collects has an answer.

Exit code: 0; 64 the command line is wrong; 1 no agent answers, or it does not collect.")]
pub struct GraphArgs {
    /// UID of the object in the middle [default: all active objects].
    #[arg(long)]
    pub uid: Option<String>,
    /// How to draw it.
    #[arg(long, value_enum, default_value_t = GraphFormat::Dot)]
    pub format: GraphFormat,
    /// How to reach the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
}
