//! CSI and DRA drivers on this node, found by their registration sockets. No connection is kept between calls. A
//! registration answer is kept as long as its socket is unchanged.
//!
//! `registry → {csi, dra} → call`

mod call;
pub mod csi;
pub mod dra;
mod kind;
pub mod registry;
mod unavailable;

pub use csi::Csi;
pub use dra::{ClaimRef, Dra, Service, Unprepared};
pub use kind::Kind;
pub use registry::{Registered, Registrars, Registry};
pub use unavailable::DriverUnavailable;

/// Generated from the files in `proto`.
#[allow(missing_docs, reason = "documented in the protocols")]
#[allow(clippy::all, clippy::pedantic, reason = "generated")]
mod wire {
    include!(concat!(env!("OUT_DIR"), "/drivers.rs"));
}
