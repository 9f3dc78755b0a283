//! Drivers on this node, found by the sockets that they register with at the kubelet: of volumes (CSI) and of devices
//! (DRA). Nothing is kept between calls, neither connections nor who is there.
//!
//! `registry → {csi, dra} → call`

mod call;
pub mod csi;
pub mod dra;
pub mod error;
pub mod registry;

pub use csi::Csi;
pub use dra::{ClaimRef, Dra, Service, Unprepared};
pub use error::{DriverError, DriverGone};
pub use registry::{Kind, Registered, Registry};

/// Generated from the files in `proto`.
#[allow(missing_docs, reason = "the protocols' own words")]
#[allow(clippy::all, clippy::pedantic, reason = "generated")]
mod wire {
    include!(concat!(env!("OUT_DIR"), "/drivers.rs"));
}
