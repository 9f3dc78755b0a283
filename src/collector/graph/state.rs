//! What is known of a node, in two bytes.

/// A set of facts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct State(u16);

// === impl State ===

impl State {
    /// Seen at its coordinates.
    pub const OBSERVED: Self = Self(1);
    /// Proven not to be at its coordinates. Neither this nor the former: named by somebody, and not known.
    pub const ABSENT: Self = Self(1 << 1);
    /// It has a `deletionTimestamp`.
    pub const DELETING: Self = Self(1 << 2);
    /// It has the finalizer `orphan`.
    pub const ORPHAN: Self = Self(1 << 3);
    /// It has the finalizer `foregroundDeletion`.
    pub const FOREGROUND: Self = Self(1 << 4);
    /// The round of lists in which it was last seen.
    pub const ROUND: Self = Self(1 << 5);

    /// A complete list did not show it, though it was there before.
    pub const UNSEEN: Self = Self(1 << 6);

    /// It went, or is taken to have gone, and was orphaning its dependents when it was last seen.
    pub const ORPHANED: Self = Self(1 << 8);

    /// The place is free for another one.
    pub(super) const FREE: Self = Self(1 << 7);

    /// Whether a fact holds.
    pub fn has(self, fact: Self) -> bool {
        self.0 & fact.0 != 0
    }

    /// Makes a fact hold, or not.
    pub fn set(&mut self, fact: Self, holds: bool) {
        if holds {
            self.0 |= fact.0;
        } else {
            self.0 &= !fact.0;
        }
    }

    /// Whether it is known to be there.
    pub fn is_there(self) -> bool {
        self.has(Self::OBSERVED) && !self.has(Self::UNSEEN)
    }

    /// Whether it is not known if it is there.
    pub fn is_in_question(self) -> bool {
        self.has(Self::UNSEEN) || !(self.has(Self::OBSERVED) || self.has(Self::ABSENT))
    }

    /// It is being deleted, and stays until its dependents are gone.
    pub fn waits(self) -> bool {
        self.has(Self::DELETING) && self.has(Self::FOREGROUND)
    }

    /// It is being deleted, and stays until its dependents are released.
    pub fn orphans(self) -> bool {
        self.has(Self::DELETING) && self.has(Self::ORPHAN)
    }

    /// What becomes of its dependents rests on its finalizers: they are deleted, or released.
    pub fn decides_on_dependents(self) -> bool {
        self.waits() || self.orphans()
    }

    /// Whoever names it is to be released from it: it goes, or went, without its dependents.
    pub fn releases(self) -> bool {
        if self.is_there() {
            self.orphans()
        } else {
            self.has(Self::ORPHANED)
        }
    }

    /// Nothing stands here.
    pub(super) fn is_free(self) -> bool {
        self.has(Self::FREE)
    }

    /// There is more to remember of it than that it is there.
    pub(super) fn is_particular(self) -> bool {
        self.has(Self::DELETING) || self.has(Self::ORPHAN) || self.has(Self::FOREGROUND)
    }
}
