//! Compares the kubelet's terminations with what the agent would have done (`--mode observe`). Only reads.
//!
//! `watch → observer {plan, runtime, leftovers} → verdict → journal`
//!
//! The observer has no workers. The guard allows no effect, its client of the runtime has only reads, and its context refuses every
//! write. It compares with what the teardown itself would do: the status by `teardown::status`, [`leftovers`] by `teardown::plan`.

mod fields;
mod leftovers;
mod observer;
mod pods;
mod reads;
mod seen;
mod volumes;

pub use observer::Observer;
