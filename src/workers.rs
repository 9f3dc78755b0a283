//! One worker for each terminating pod: in order for one pod, in parallel for different pods.

pub mod stop;

pub mod artifacts;
mod handle;
mod map;

pub(crate) use self::handle::Request;
pub use self::{
    handle::{KnownPod, Overview, PodRequests, RequestReceiver, WorkersHandle},
    map::PodWorkers,
};
