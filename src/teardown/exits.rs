//! Exited containers, as far as a status needs them when the runtime has forgotten them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// By container id.
pub type Exits = BTreeMap<String, ContainerExit>;

/// An exited container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerExit {
    /// Name in the pod's spec.
    pub name: String,
    /// CRI attempt.
    pub attempt: u32,
    /// From the kubelet's annotation.
    pub restart_count: i32,
    /// Its sandbox.
    pub sandbox_id: String,
    /// When it was created, by the runtime's clock.
    pub created_at: Timestamp,
    /// When it was started; `None` if never.
    pub started_at: Option<Timestamp>,
    /// When it exited.
    pub finished_at: Option<Timestamp>,
    /// Exit code.
    pub exit_code: i32,
    /// Runtime's reason.
    pub reason: String,
    /// Runtime's message.
    pub message: String,
    /// Image in the spec.
    pub image: String,
    /// Image as resolved by the runtime.
    pub image_ref: String,
    /// Its termination message; `None` if it could not be read.
    pub termination_message: Option<String>,
}
