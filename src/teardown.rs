//! Takes a pod down: each step is idempotent, and failures are collected.

pub(crate) mod begin;
pub mod boundary;
pub(crate) mod bounded_read;
pub(crate) mod busy;
pub(crate) mod cleanup;
pub(crate) mod containers;
pub(crate) mod context;
pub(crate) mod dependents;
pub(crate) mod devices;
#[cfg(feature = "agent")]
pub mod diagnosis;
pub(crate) mod drivers;
pub(crate) mod evidence;
pub mod exits;
pub(crate) mod final_delete;
pub(crate) mod grace;
pub(crate) mod hooks;
mod http_hook;
pub mod journal;
pub(crate) mod known_processes;
pub(crate) mod large_object;
pub(crate) mod late;
pub(crate) mod locate;
pub(crate) mod named_processes;
pub(crate) mod node_service;
pub mod on_disk;
pub(crate) mod period;
pub mod plan;
pub mod pod_dir;
pub(crate) mod pod_reads;
pub(crate) mod priority_gate;
pub(crate) mod read_only;
pub(crate) mod recorded_exits;
pub(crate) mod runtime_state;
pub(crate) mod status;
pub(crate) mod status_sender;
pub(crate) mod stop;
pub(crate) mod stop_order;
pub(crate) mod stop_throttle;
pub(crate) mod termination_message;
pub(crate) mod user_namespace;
pub mod volumes;
pub(crate) mod worker;

pub use worker::WorkerResult;

/// Prefix of the message of `FailedKillPod`, as the kubelet's.
pub(crate) const NOT_KILLED: &str = "error killing pod";
