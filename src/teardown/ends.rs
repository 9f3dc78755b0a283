//! How containers ended: what a status needs of them when the runtime no longer knows them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// By container id.
pub type Ends = BTreeMap<String, ContainerEnd>;

/// A container that was seen to have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerEnd {
    /// Name in the pod's spec.
    pub name: String,
    /// CRI attempt.
    pub attempt: u32,
    /// From the kubelet's annotation.
    pub restart_count: i32,
    /// The sandbox it lived in.
    pub sandbox_id: String,
    /// When it was created, by the runtime's clock.
    pub created_at: Timestamp,
    /// When it was started; `None` if never.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Exit code.
    pub exit_code: i32,
    /// Runtime's reason.
    pub reason: String,
    /// Runtime's message.
    pub message: String,
    /// Image as the user wrote it.
    pub image: String,
    /// Image as the runtime resolved it.
    pub image_ref: String,
    /// Its termination message; `None` if it could not be read.
    pub last_words: Option<String>,
}
