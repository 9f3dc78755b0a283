//! Whether this agent may act, and why not.
//!
//! `monitor` probes the kubelet, `probes` has the history of each probe, and `role` decides the role: active or standby. `guard`
//! blocks effects by that role and by the Node's identity; a pause blocks new work and the
//! repetition of failed attempts.

pub mod cluster;
pub mod condition;
mod fence;
pub mod guard;
pub mod healthz;
pub mod monitor;
pub mod probes;
pub mod report;
pub mod role;
