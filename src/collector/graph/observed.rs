//! Objects as the API server shows them.

use crate::collector::kinds::KindId;

/// Kind, namespace and name of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coordinates<'a> {
    pub kind: KindId,
    /// Its namespace; empty for a cluster-scoped object.
    pub namespace: &'a str,
    pub name: &'a str,
}

/// The metadata that the collector uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    pub uid: String,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
    /// `resourceVersion`; 0 without one.
    pub version: u64,
    /// It has a `deletionTimestamp`.
    pub deleting: bool,
    /// It has the finalizer `orphan`.
    pub orphan: bool,
    /// It has the finalizer `foregroundDeletion`.
    pub foreground: bool,
    pub owners: Vec<Reference>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reference {
    /// Group and version of the owner.
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub blocking: bool,
}
