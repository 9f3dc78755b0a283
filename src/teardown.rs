//! Takes a pod down: each step is idempotent, and failures are collected.

pub(crate) mod attempt;
pub(crate) mod begin;
pub mod boundary;
pub(crate) mod bounded_read;
pub(crate) mod context;
#[cfg(feature = "agent")]
pub mod diagnosis;
pub(crate) mod drivers;
pub(crate) mod evidence;
pub(crate) mod grace;

pub(crate) mod late;
pub(crate) mod limits;
pub(crate) mod locate;
pub(crate) mod named_processes;
pub(crate) mod node_service;
pub mod on_disk;
pub(crate) mod period;
pub mod plan;
pub(crate) mod runtime_state;
pub(crate) mod status;
pub(crate) mod steps;
pub(crate) mod termination_message;
pub mod volumes;
pub mod work;
pub(crate) mod worker;

pub use worker::WorkerResult;

/// Prefix of the message of `FailedKillPod`, as the kubelet's.
pub(crate) const NOT_KILLED: &str = "error killing pod";
