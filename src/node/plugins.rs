//! CSI and DRA drivers on this node, found by their registration sockets. No connection and no answer is kept
//! between calls.
//!
//! `registry → {csi, dra} → call`

use std::{fmt, path::PathBuf};

use crate::model::failure::Reasoned;

mod call;
pub mod csi;
pub mod dra;
pub mod registry;

pub use csi::Csi;
pub use dra::{ClaimRef, Dra, Unprepared};
pub use registry::{Registered, Registry};

/// Generated from the files in `proto`.
#[allow(missing_docs, reason = "documented in the protocols")]
#[allow(clippy::all, clippy::pedantic, reason = "generated")]
mod wire {
    include!(concat!(env!("OUT_DIR"), "/drivers.rs"));
}

/// Type of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// CSI: volumes.
    Csi,
    /// DRA: dynamic resources.
    Dra,
}

// === impl Kind ===

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Csi => "CSI",
            Self::Dra => "DRA",
        })
    }
}

/// A driver that is needed but cannot be called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} driver {driver:?} is not available on this node: {why} (registrations below {registry_dir:?}); it can \
     only be called once its pod runs here again"
)]
pub struct DriverUnavailable {
    /// Of which kind it would be.
    pub kind: Kind,
    /// Its name.
    pub driver: String,
    /// How that was detected.
    pub why: String,
    /// The directory in which drivers register.
    pub registry_dir: PathBuf,
}

impl Reasoned for DriverUnavailable {
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        "unregistered".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_driver_is_reported_with_directory_and_remedy() {
        let gone = DriverUnavailable {
            kind: Kind::Csi,
            driver: "csi.example.com".to_owned(),
            why: "none of 3 sockets registers it".to_owned(),
            registry_dir: "/var/lib/kubelet/plugins_registry".into(),
        };
        assert_eq!(
            gone.to_string(),
            "CSI driver \"csi.example.com\" is not available on this node: none of 3 sockets registers it (registrations below \
             \"/var/lib/kubelet/plugins_registry\"); it can only be called once its pod runs here again"
        );
    }
}
