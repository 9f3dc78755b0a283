//! The agent in one process with a scripted runtime and an API server in memory, on a clock that only these tests turn.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]
#![allow(clippy::disallowed_methods, reason = "the machine is a directory of the test's own")]

mod log;
mod node;
mod pods;

mod absence;
mod answers;
mod cancelled;
mod containers;
mod cri_o;
mod devices;
mod disk;
mod driver_hold;
mod elsewhere;
mod ends;
mod files;
mod grace;
mod guard;
mod half_open;
mod hand_back;
mod held;
mod hooks;
mod hostile;
mod housekeeping;
mod idle;
mod in_use;
mod journal;
mod large_lists;
mod meanwhile;
mod midway;
mod orphans;
mod pause;
mod queue;
mod requests;
mod restart;
mod runtime;
mod runtime_state;
mod server;
mod stop;
mod telling;
mod turn_told;
mod understudy;

mod unread;
mod unused;
mod user_namespace;
mod world;
