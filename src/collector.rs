//! The garbage collector of owner references.
//!
//! Data flow: `discovery → monitors → graph → decide → queue → engine → API server`

pub mod collect;
pub(crate) mod discovery;
mod monitor;
pub mod wire;

pub(crate) mod core;
pub mod counts;
pub(crate) mod graph;
pub(crate) mod kinds;
pub mod leader_election;
pub(crate) mod names;
mod object_events;
pub(crate) mod picture;
pub mod shared;
pub(crate) mod sync_state;
mod uid;

mod decide;
mod engine;
mod outage;
pub(crate) mod queue;
mod request;

pub mod report;
mod summary;
pub mod why;

pub use leader_election::Mode;

#[cfg(test)]
mod tests;
