//! Whether this agent may act, and why not: one place that answers.
//!
//! `monitor` looks at the kubelet, `signs` knows for how long each look has shown the same, and `judge` decides whose pods these
//! are. `guard` lets effects pass or not: by that, by the Node's identity, and while nobody has paused the agent.

mod fence;
pub mod guard;
pub mod healthz;
pub mod judge;
pub mod monitor;
pub mod report;
pub mod signs;
