//! `gc`: the garbage collector of owner references.

use clap::{Args, Subcommand};

use super::{
    object::{ObjectArg, OptionalObjectArg},
    output::{GraphFormat, PlainQueryFlags, QueryFlags, SocketFlag},
};

/// The verbs of `gc`.
#[derive(Debug, Clone, Subcommand)]
#[expect(missing_docs, reason = "where a verb has no comment, its arguments have the help")]
pub enum GcVerb {
    /// Show the state of the collector: its role, each kind, its queues, the objects that wait longest, and those whose owner is unknown.
    #[command(after_help = "Examples:
  # Show the state of the collector
  pod-teardown gc status
  # Its state as JSON, for scripts
  pod-teardown gc status -o json | jq .work

Exit code: 0; 64 the command line is wrong; 1 no agent answers, or it does not collect.")]
    Status(QueryFlags),
    Graph(GraphArgs),
    Why(GcWhyArgs),
}

/// Draw objects with their owners and dependents as the collector knows them, and its decision on each.
///
/// With an object: all objects that are connected with it, nearest first. Without: all active objects and those connected with
/// them. Active are objects that are being deleted or wait for others, and owners that do not exist or are unknown. At most 200
/// objects are drawn; the picture names the number of the others. An arrow leads from a dependent to its owner; a red arrow
/// blocks the deletion of the owner.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Draw all active objects
  pod-teardown gc graph | dot -Tsvg > graph.svg
  # Draw the objects around Deployment web in namespace shop
  pod-teardown gc graph -n shop deploy web | dot -Tsvg > web.svg
  # List blocked objects
  pod-teardown gc graph -o json | jq '.objects[] | select(.class == \"blocked\")'

Only the agent that collects has an answer.

Exit code: 0; 64 the command line is wrong; 1 no agent answers, or it does not collect.")]
pub struct GraphArgs {
    /// The object in the middle [default: all active objects].
    #[command(flatten)]
    pub object: OptionalObjectArg,
    /// The object in the middle by its UID.
    #[arg(long, conflicts_with = "kind")]
    pub uid: Option<String>,
    /// How to draw it.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = GraphFormat::Dot)]
    pub output: GraphFormat,
    /// How to reach the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
}

/// Explain why an object still exists, and what it waits for.
///
/// The collector knows objects that are being deleted and wait for their dependents (the finalizers foregroundDeletion and
/// orphan), and objects that block the deletion of an owner. It also knows those that are kept because it is unknown whether their
/// owner exists. The answer follows the chain to the object that everything waits for, with its last failure.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Why does Deployment web in namespace shop still exist?
  pod-teardown gc why -n shop Deployment.apps web
  pod-teardown gc why deploy web -n shop
  # An object without a namespace
  pod-teardown gc why Namespace old
  # Any object by its UID
  pod-teardown gc why 0b9a8230-aace-4480-91d0-db24e46eb609

Without .GROUP any group matches, and without a namespace any namespace. Only the agent that collects has an answer; others \
name it. For pods of this node see why.

Exit code: 0; 64 the command line is wrong; 1 no agent answers, or it does not know the object.")]
pub struct GcWhyArgs {
    /// The object.
    #[command(flatten)]
    pub object: ObjectArg,
    /// How to ask the agent.
    #[command(flatten)]
    pub query: PlainQueryFlags,
}
