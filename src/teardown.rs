//! Taking a pod down: each step idempotent, failures collected, nothing cut short by one of them.

pub mod begin;
pub mod boundary;
pub mod busy;
pub mod cleanup;
mod containers;
pub mod context;
pub mod devices;
pub mod drivers;
pub mod ends;
pub mod evidence;
pub mod final_delete;
pub mod grace;
pub mod hooks;
mod http_hook;
pub mod journal;
pub mod late;
pub mod node_service;
pub mod on_disk;
pub mod period;
pub mod places;
pub mod pod_dir;
pub mod precedence;
pub mod remembered;
pub mod runtime_state;
pub mod status;
pub mod status_sender;
pub mod stop;
pub mod termination_message;
pub mod user_namespace;
pub mod volumes;
pub mod worker;

/// How an event `FailedKillPod` begins, as the kubelet's.
pub const NOT_KILLED: &str = "error killing pod";
