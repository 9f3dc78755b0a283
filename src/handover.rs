//! Whether this agent may act, and why not.
//!
//! `monitor` probes the kubelet, `probes` has the history of each probe, and `role` decides the role: active or standby. `guard`
//! stops effects by that role, by the Node's identity, and during a pause.

mod fence;
pub mod guard;
pub mod healthz;
pub mod monitor;
pub mod probes;
pub mod report;
pub mod role;
