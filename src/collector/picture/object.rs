//! A picture of objects and their owner references, as data.

use serde::{Deserialize, Serialize};

/// Objects and references to draw, as `gc graph` prints them in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Picture {
    /// The UID at its center; without one, it shows the objects that are not idle.
    pub around: Option<String>,
    /// Its objects, nearest first.
    pub objects: Vec<Pictured>,
    /// References between them.
    pub references: Vec<PicturedReference>,
    /// Number of references that lead out of it; without a UID: number of objects that are not idle and not in it.
    pub left_out: u64,
}

/// An object, or an owner that is only named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Pictured {
    /// Its group, empty for the core group.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace, empty if it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Whether it exists.
    pub state: Presence,
    /// It has a `deletionTimestamp`.
    pub deleting: bool,
    /// `foregroundDeletion` and `orphan`, if it has them. Other finalizers are not known.
    pub gc_finalizers: Vec<String>,
    /// Its class: how it is drawn.
    pub class: Appearance,
    /// The collector's decision and its reason; `None` if there is nothing to do.
    pub decision: Option<String>,
    /// Number of references to it.
    pub dependents: u64,
    /// Number of these with `blockOwnerDeletion`.
    pub blocking: u64,
    /// Its references that are not in the picture.
    pub more_owners: u64,
    /// References to it that are not in the picture.
    pub more_dependents: u64,
    /// Number of these with `blockOwnerDeletion`.
    pub more_blocking: u64,
}

/// Whether an object exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Presence {
    /// It was observed.
    Observed,
    /// It is named and was never observed.
    Virtual,
    /// It does not exist.
    Absent,
    /// It was observed, and the last complete list did not show it.
    Unconfirmed,
}

/// How an object is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Appearance {
    /// It is in foreground deletion.
    Waiting,
    /// It is kept because one of its owners is unknown.
    Blocked,
    /// It may exist.
    Virtual,
    /// It does not exist.
    Absent,
    /// It is being deleted, or will be.
    Deleting,
    /// None of these.
    Plain,
}

/// A reference, by indexes of the picture's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PicturedReference {
    /// The dependent.
    pub dependent: usize,
    /// The owner.
    pub owner: usize,
    /// `blockOwnerDeletion`.
    pub blocking: bool,
    /// The owner is in foreground deletion and waits for the dependent.
    pub holds_up: bool,
}
