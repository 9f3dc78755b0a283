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
pub mod figures;
pub mod graph;
pub mod kinds;
pub mod leader_election;
mod misplaced;
pub mod names;
pub mod picture;
pub mod refusals;
pub mod shared;
pub mod sight;
mod uid;

mod decide;
mod engine;
pub mod limit;
pub mod queue;
mod work;

pub mod report;
mod summary;
mod turns;
mod watches;
pub mod why;

pub use leader_election::Mode;
pub use sight::Unsynced;

#[cfg(test)]
mod tests;
