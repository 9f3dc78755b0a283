//! Types of plugins.

use std::fmt;

/// Type of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// CSI: volumes.
    Csi,
    /// DRA: dynamic resources.
    Dra,
    /// Not relevant for teardown.
    Other,
}

// === impl Kind ===

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Csi => "CSI",
            Self::Dra => "DRA",
            Self::Other => "other",
        })
    }
}
