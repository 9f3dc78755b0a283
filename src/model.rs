//! Shared vocabulary: what a pod is, why it terminates, the steps of its termination, and what blocks it. Pure.

pub mod blocked;
pub mod event;
pub mod failure;
pub mod foreign;
pub mod kubelet_unit;
pub mod mismatch;
pub mod observation;
pub mod pause;
pub mod pod;
pub mod problem;
pub mod problems;
pub mod role;
pub mod step;
pub mod termination;
pub mod trace;
