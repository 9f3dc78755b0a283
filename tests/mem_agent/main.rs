//! The agent in one process with a scripted runtime and an API server in memory, on a clock that only these tests turn.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]
#![allow(clippy::disallowed_methods, reason = "the machine is a directory of the test's own")]

mod node;
mod pods;

mod absence;
mod disk;
mod elsewhere;
mod files;
mod grace;
mod guard;
mod hooks;
mod hostile;
mod queue;
mod restart;
mod runtime;
mod server;
mod stop;
mod world;
