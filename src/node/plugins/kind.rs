//! Kinds of plugins.

use std::fmt;

/// What a driver is one of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Volumes.
    Csi,
    /// Dynamic resources.
    Dra,
    /// Something that teardown has nothing to say to.
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
