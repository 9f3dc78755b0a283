//! For the people who run the agent: what it does, how it went, whether it could.

pub mod admin;
pub mod check;
pub mod client;
pub mod end;
pub mod gc_status;
pub mod hand_back;
pub mod held;
pub mod journald;
pub mod logging;
pub mod manual;
pub mod metrics;
pub mod notify;
pub mod pause;
mod stands;
pub mod status;
pub mod timeline;
pub mod why;
