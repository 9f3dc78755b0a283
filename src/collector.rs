//! The garbage collector of owner references.
//!
//! Data flow: `discovery → monitors → graph → decide → queue → engine → API server`

pub mod collect;
pub mod discovery;
mod monitor;
pub mod wire;

pub mod census;
pub mod core;
pub mod counts;
pub mod graph;
pub mod kinds;
pub mod leader_election;
pub mod metrics_snapshot;
pub mod names;
pub mod picture;
pub mod refusals;
pub mod shared;
pub mod sync_state;
mod uid;
mod wrong_namespace;

mod decide;
mod engine;
pub mod limit;
pub mod queue;
mod request;

mod failing_kinds;
mod list_slots;
pub mod report;
mod summary;
pub mod why;

pub use leader_election::Mode;

#[cfg(test)]
mod tests;
