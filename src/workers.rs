//! One worker for each pod that ends: strictly in order for one pod, independent between pods.

pub mod kill;

mod ask;
mod map;
pub mod traces;

pub use self::{
    ask::{Overview, Questions, WorkersHandle},
    map::PodWorkers,
};
