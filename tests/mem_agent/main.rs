//! The agent in one process with a scripted runtime and an API server in memory, on a clock that only these tests turn.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]
#![allow(clippy::disallowed_methods, reason = "the machine is a directory of the test's own")]

mod log;
mod node;
mod pods;

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
mod large_lists;
mod orphans;
mod other_root;
mod pause;
mod queued_writes;
mod restart;
mod role_changes;
mod runtime;
mod runtime_state;
mod safety_holds;
mod server;
mod standby;
mod stop;
mod stop_outcomes;
mod stop_requests;

mod node_identity;
mod unreadable_status;
mod unused_volumes;
mod user_namespace;
