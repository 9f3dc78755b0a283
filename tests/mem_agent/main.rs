//! The agent in one process with a scripted runtime and an API server in memory, on a clock that only these tests turn.

mod node;

mod absence;
mod disk;
mod grace;
mod guard;
mod hooks;
mod hostile;
mod restart;
mod runtime;
mod server;
mod stop;
