//! Scripted drivers of volumes (CSI) and devices (DRA), on real sockets below a kubelet's root, where the kubelet would
//! find them.
//!
//! `home {registration} ← csi {mounts}, dra`, all with a `behavior`; `csi_volumes` and `claims` create the files that a
//! kubelet leaves for volumes and claims.
//!
//! Everything runs in the caller's runtime. Mounts are in the mount namespace of the calling thread.

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
