//! One worker for each pod that ends: strictly in order for one pod, independent between pods.

pub mod grace;
pub mod termination;

mod map;
mod worker;

pub use self::map::{Overview, PodWorkers, Questions, WorkersHandle};
