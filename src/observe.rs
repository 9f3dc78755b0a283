//! Compares the kubelet's terminations with what the agent would have done (`--mode observe`). Only reads.
//!
//! `watch → observer {plan, runtime, leftovers} → judge → journal`
//!
//! The observer has no workers. The guard allows no effect, its client of the runtime has only reads, and its context refuses every
//! write. Status and leftovers come from the functions that the teardown uses: [`expected`] from `teardown::status`, [`leftovers`]
//! from `teardown::plan`.

mod events;
mod expected;
mod fields;
mod judge;
mod leftovers;
mod observer;
mod pods;
mod reads;
mod seen;
mod volumes;

pub use fields::SITUATIONS;
pub use observer::Observer;
