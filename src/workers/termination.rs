//! Whether a pod's end begins, and why. Once begun it is never taken back.

use crate::pod::PodView;

/// Why a pod is taken down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It has a deletionTimestamp.
    Deleted,
    /// Its phase is Failed or Succeeded.
    PhaseTerminal,
    /// Its object is proven to be gone while it may still run here.
    Removed,
}

/// Why this pod must end; `None` if it goes on living or is not ours to end.
pub fn cause(view: &PodView, removed: bool) -> Option<Cause> {
    if view.mirror {
        // A mirror's deletion says nothing of the static pod behind it.
        return None;
    }
    match (view.deletion.is_some(), view.terminal_phase, removed) {
        (true, _, _) => Some(Cause::Deleted),
        (false, _, true) => Some(Cause::Removed),
        (false, true, false) => Some(Cause::PhaseTerminal),
        (false, false, false) => None,
    }
}

impl Cause {
    /// Grace imposed by the cause itself. An object that is gone leaves nobody to wait for: what replaces the pod may
    /// run elsewhere already.
    pub fn imposed_grace(self) -> Option<i64> {
        match self {
            Self::Removed => Some(1),
            Self::Deleted | Self::PhaseTerminal => None,
        }
    }
}
