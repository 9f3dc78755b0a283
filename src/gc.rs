//! The garbage collector of owner references.
//!
//! The way of an object: `discovery → monitors → graph → queues → {delete, orphan} workers`

pub mod decide;
pub mod graph;
pub mod kinds;
pub mod picture;
pub mod uid;
pub mod wire;

#[cfg(test)]
mod tests;
