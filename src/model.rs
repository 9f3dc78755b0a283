//! Shared vocabulary: what a pod is, why it terminates, the steps of its termination, and what blocks it. Pure.

pub mod event;
pub mod failure;
pub mod foreign;
pub mod kubelet_unit;
pub mod mismatch;
pub mod observation;
pub mod pod;
pub mod problem;
pub mod problems;
pub mod step;
pub mod termination;
pub mod trace;
pub mod waits_for;
