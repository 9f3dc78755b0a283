//! The agent in one process with a scripted runtime and an API server in memory, on a clock that only these tests turn.

mod node;

mod grace;
mod hooks;
mod restart;
mod stop;
