//! Drivers of volumes (CSI) and devices (DRA) that do what a test tells them, on real sockets below a kubelet's root, where
//! the kubelet would find them.
//!
//! `home {registration} ← csi {mounts}, dra`, all after a `conduct`; `left` and `claims` lay out what a kubelet leaves of volumes
//! and of claims.
//!
//! Everything runs in the caller's runtime. Mounts are those of the mount namespace of whichever thread that is.

pub mod behavior;
pub mod claims;
pub mod csi;
pub mod csi_volumes;
pub mod dra;
mod home;

pub use behavior::Behavior;
pub use csi::{CsiCall, CsiDriver};
pub use dra::{DraCall, DraDriver, DraService};

#[allow(missing_docs, reason = "generated; the agent's proto files say what there is to say")]
#[allow(clippy::all, clippy::pedantic, reason = "generated")]
mod wire {
    include!(concat!(env!("OUT_DIR"), "/drivers.rs"));
}
