//! `gc`: the garbage collector of owner references.

use clap::Subcommand;

use super::{
    object::ObjectArg,
    output::{QueryFlags, SocketFlag},
};

/// The verbs of `gc`.
#[derive(Debug, Clone, Subcommand)]
pub enum GcVerb {
    /// Show the state of the collector: its role, each kind, its queues, the objects that wait longest, and those whose owner is unknown.
    #[command(after_help = "Examples:
  # Show the state of the collector
  pod-teardown gc status")]
    Status(QueryFlags),
    /// Draw objects with their owners and dependents as the collector knows them, and its decision on each, for Graphviz.
    ///
    /// With an object: all objects that are connected with it, nearest first, at most 200. Without: all active objects and those
    /// connected with them. An arrow leads from a dependent to its owner; a red arrow blocks the deletion of the owner.
    #[command(after_help = "Examples:
  # Draw the objects around Deployment web in namespace shop
  pod-teardown gc graph -n shop deploy web | dot -Tsvg > web.svg

Only the agent that collects has an answer.")]
    Graph {
        #[command(flatten)]
        object: ObjectArg,
        #[command(flatten)]
        socket: SocketFlag,
    },
    /// Explain why an object still exists, and what it waits for.
    ///
    /// The answer follows the chain of owners and dependents to the object that everything waits for, with its last failure.
    #[command(after_help = "Examples:
  # Why does Deployment web in namespace shop still exist?
  pod-teardown gc why -n shop Deployment.apps web

Without .GROUP any group matches, and without a namespace any namespace. Only the agent that collects has an answer; others \
name it. For pods of this node see why.")]
    Why {
        #[command(flatten)]
        object: ObjectArg,
        #[command(flatten)]
        query: QueryFlags,
    },
}
