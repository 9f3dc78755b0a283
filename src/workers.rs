//! One worker for each pod that ends: strictly in order for one pod, independent between pods.

pub mod grace;
pub mod kill;
pub mod period;

mod ask;
mod map;
mod precedence;
pub mod traces;
mod worker;

pub use self::{
    ask::{Overview, Questions, WorkersHandle},
    map::PodWorkers,
};
