//! The agent in one process with a scripted runtime and an in-memory API server, on a virtual clock.

#![allow(clippy::unwrap_used, reason = "it fails the test")]
#![allow(clippy::disallowed_methods, reason = "the node is a directory of the test")]

/// Waits on the virtual clock until the condition holds.
macro_rules! wait_until {
    ($holds:expr) => {
        $crate::node::wait_until(stringify!($holds), async || $holds).await
    };
}

mod absence;
mod canceled_stops;
mod concurrent_changes;
mod containers;
mod cri_o;
mod devices;
mod disk;
mod driver_hold;
mod events;
mod exit_status;
mod expired_certificate;
mod failing_kubelet;
mod files;
mod grace;
mod guard;
mod half_open;
mod handover;
mod hooks;
mod hostile;
mod housekeeping;
mod idle_pods;
mod in_progress;
mod in_use;
mod journal;
mod kubelet_unit;
mod log;
mod many_stops;
mod node;
mod node_condition;
mod node_identity;
mod observe;
mod orphans;
mod other_root;
mod pause;
mod plan;
mod pods;
mod prelude;
#[cfg(feature = "system-tests")]
mod prometheus;
mod queued_writes;
mod restart;
mod role_changes;
mod runtime;
mod runtime_state;
mod safety_holds;
mod schema;
mod server;
mod standby;
mod stop;
mod stop_outcomes;
mod stop_requests;
mod traces;
mod unreadable_status;
mod unused_volumes;
mod user_namespace;
