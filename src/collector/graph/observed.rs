//! Objects as the API server shows them.

use super::namespaces::NamespaceId;
use crate::collector::kinds::KindId;

/// Kind, namespace and name of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coordinates<'a> {
    /// Its kind.
    pub kind: KindId,
    /// Its namespace.
    pub namespace: NamespaceId,
    /// Its name.
    pub name: &'a str,
}

/// The metadata that the collector uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// UID.
    pub uid: String,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `resourceVersion`.
    pub version: String,
    /// It has a `deletionTimestamp`.
    pub deleting: bool,
    /// It has the finalizer `orphan`.
    pub orphan: bool,
    /// It has the finalizer `foregroundDeletion`.
    pub foreground: bool,
    /// Its owner references.
    pub owners: Vec<Reference>,
}

/// An owner reference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reference {
    /// Group and version of the owner.
    pub api_version: String,
    /// Kind of the owner.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// UID of the owner.
    pub uid: String,
    /// `blockOwnerDeletion`.
    pub blocking: bool,
}
