//! The garbage collector of owner references.
//!
//! The way of an object: `discovery → monitors → graph → queues → {delete, orphan} workers`

pub mod collect;
pub mod discovery;
pub mod monitor;
pub mod wire;

pub mod core;
pub mod counts;
pub mod figures;
pub mod graph;
pub mod kinds;
pub mod misplaced;
pub mod names;
pub mod picture;
pub mod shared;
pub mod sight;
pub mod uid;

pub mod decide;
pub mod engine;
pub mod limit;
pub mod queue;
pub mod work;

pub mod report;
pub mod summary;
pub mod why;

#[cfg(test)]
mod tests;
