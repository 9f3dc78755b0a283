//! When a collector may work.

use serde::{Deserialize, Serialize};

/// When this agent's collector may work: `--gc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// While kube-controller-manager's Lease is not renewed.
    Auto,
    /// Whether kube-controller-manager works or not.
    Always,
    /// Not at all.
    Never,
}

// === impl Mode ===

impl Mode {
    /// Its value of `--gc`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}
