//! The state of a node, in two bytes.

/// A set of facts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct State(u16);

// === impl State ===

impl State {
    /// A list, watch or GET has shown it at its coordinates.
    pub const OBSERVED: Self = Self(1);
    /// It does not exist at its coordinates. A node with neither fact is named and unknown.
    pub const ABSENT: Self = Self(1 << 1);
    /// It has a `deletionTimestamp`.
    pub const DELETING: Self = Self(1 << 2);
    /// It has the finalizer `orphan`.
    pub const ORPHAN: Self = Self(1 << 3);
    /// It has the finalizer `foregroundDeletion`.
    pub const FOREGROUND: Self = Self(1 << 4);
    /// Mark of the list that last showed it.
    pub const LIST_MARK: Self = Self(1 << 5);

    /// It was observed, and the last complete list did not show it.
    pub const UNCONFIRMED: Self = Self(1 << 6);

    /// It is deleted, or counts as deleted, and had the finalizer `orphan` when it was last seen.
    pub const ORPHANED: Self = Self(1 << 8);

    /// The index is free.
    pub(super) const FREE: Self = Self(1 << 7);

    /// Whether a fact holds.
    pub fn has(self, fact: Self) -> bool {
        self.0 & fact.0 != 0
    }

    /// Sets or clears a fact.
    pub fn set(&mut self, fact: Self, holds: bool) {
        if holds {
            self.0 |= fact.0;
        } else {
            self.0 &= !fact.0;
        }
    }

    /// Whether it exists.
    pub fn exists(self) -> bool {
        self.has(Self::OBSERVED) && !self.has(Self::UNCONFIRMED)
    }

    /// Whether it may exist.
    pub fn is_unknown(self) -> bool {
        self.has(Self::UNCONFIRMED) || !(self.has(Self::OBSERVED) || self.has(Self::ABSENT))
    }

    /// Whether it is in foreground deletion.
    pub fn in_foreground_deletion(self) -> bool {
        self.has(Self::DELETING) && self.has(Self::FOREGROUND)
    }

    /// Whether it is in orphan deletion.
    pub fn in_orphan_deletion(self) -> bool {
        self.has(Self::DELETING) && self.has(Self::ORPHAN)
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
            self.has(Self::ORPHANED)
        }
    }

    /// Whether the index is free.
    pub(super) fn is_free(self) -> bool {
        self.has(Self::FREE)
    }

    /// Whether it is being deleted, or has the finalizer of orphan or foreground deletion.
    pub(super) fn has_deletion_facts(self) -> bool {
        self.has(Self::DELETING) || self.has(Self::ORPHAN) || self.has(Self::FOREGROUND)
    }
}
