//! The words of the domain, which every other module shares: what a pod is, why it terminates, the steps of that, and what blocks
//! it. Pure.

pub mod event;
pub mod failure;
pub mod foreign;
pub mod mismatch;
pub mod pod;
pub mod problem;
pub mod problems;
pub mod termination;
pub mod trace;
