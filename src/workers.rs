//! One worker for each terminating pod: in order for one pod, in parallel for different pods.

pub mod kill;

mod handle;
mod map;
pub mod traces;

pub use self::{
    handle::{Overview, RequestReceiver, WorkersHandle},
    map::PodWorkers,
};
