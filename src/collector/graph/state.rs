//! The state of a node, in two bytes.

bitflags::bitflags! {
    /// A set of facts.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct NodeState: u16 {
        /// A list, watch or GET has shown it at its coordinates.
        const OBSERVED = 1;
        /// It does not exist at its coordinates. A node with neither fact is named and unknown.
        const ABSENT = 1 << 1;
        /// It has a `deletionTimestamp`.
        const DELETING = 1 << 2;
        /// It has the finalizer `orphan`.
        const ORPHAN = 1 << 3;
        /// It has the finalizer `foregroundDeletion`.
        const FOREGROUND = 1 << 4;
        /// Mark of the list that last showed it.
        const LIST_MARK = 1 << 5;
        /// It was observed, and the last complete list did not show it.
        const UNCONFIRMED = 1 << 6;
        /// The index is free.
        const FREE = 1 << 7;
        /// It is deleted, or counts as deleted, and had the finalizer `orphan` when it was last seen.
        const ORPHANED = 1 << 8;
    }
}

// === impl NodeState ===

impl NodeState {
    /// Whether it exists.
    pub fn exists(self) -> bool {
        self.contains(Self::OBSERVED) && !self.contains(Self::UNCONFIRMED)
    }

    /// Whether it may exist.
    pub fn is_unknown(self) -> bool {
        self.contains(Self::UNCONFIRMED) || !(self.contains(Self::OBSERVED) || self.contains(Self::ABSENT))
    }

    /// Whether it is in foreground deletion.
    pub fn in_foreground_deletion(self) -> bool {
        self.contains(Self::DELETING) && self.contains(Self::FOREGROUND)
    }

    /// Whether it is in orphan deletion.
    pub fn in_orphan_deletion(self) -> bool {
        self.contains(Self::DELETING) && self.contains(Self::ORPHAN)
    }

    /// Whether it is in foreground or orphan deletion, so that its dependents are deleted or lose the reference.
    pub fn has_deletion_finalizer(self) -> bool {
        self.in_foreground_deletion() || self.in_orphan_deletion()
    }

    /// Whether its dependents have to drop their references: it is, or was, in orphan deletion.
    pub fn orphans_dependents(self) -> bool {
        if self.exists() {
            self.in_orphan_deletion()
        } else {
            self.contains(Self::ORPHANED)
        }
    }

    /// Whether the index is free.
    pub(super) fn is_free(self) -> bool {
        self.contains(Self::FREE)
    }

    /// Whether it is being deleted, or has the finalizer of orphan or foreground deletion.
    pub(super) fn has_deletion_facts(self) -> bool {
        self.intersects(Self::DELETING | Self::ORPHAN | Self::FOREGROUND)
    }
}
