//! Leftovers in `status`.

use serde::{Deserialize, Serialize};

/// Leftovers in `status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LeftoverReport {
    /// Artifacts of deleted pods, which will be terminated.
    #[serde(default)]
    pub leftovers: Vec<String>,
    /// Artifacts without proof that they belong to a pod of the API server; they are not touched.
    #[serde(default)]
    pub unmanaged: Vec<String>,
    /// Volumes that no pod uses, and why they cannot be unstaged.
    #[serde(default)]
    pub unused_volumes: Vec<String>,
}
