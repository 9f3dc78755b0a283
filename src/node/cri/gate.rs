//! The one gate that every call passes that changes something in the runtime.

use std::fmt;
use std::sync::Arc;

/// Whether effects on the node are allowed at this moment. Asked before each of them, so it must answer from memory.
pub type EffectGate = Arc<dyn Fn() -> Result<(), Held> + Send + Sync>;

/// Effects are held back, for this reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("held back: {reason}")]
pub struct Held {
    /// In words for the operator.
    pub reason: String,
}

/// What stands between a decision and its effect: the gate first, then the dry run.
#[derive(Clone)]
pub struct Effects {
    gate: EffectGate,
    dry_run: bool,
}

/// What becomes of an effect that is not held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// It happens.
    Perform,
    /// It is logged and left out.
    LeaveOut,
}

// === impl Effects ===

impl Effects {
    /// Effects that happen whenever `gate` says so, or, in a dry run, are logged then.
    pub fn new(gate: EffectGate, dry_run: bool) -> Self {
        Self { gate, dry_run }
    }

    /// Effects that nothing holds back: for programs that are not the agent, and for tests.
    pub fn unguarded() -> Self {
        Self::new(Arc::new(|| Ok(())), false)
    }

    pub(super) fn admit(&self) -> Result<Admission, Held> {
        (self.gate)()?;
        Ok(if self.dry_run {
            Admission::LeaveOut
        } else {
            Admission::Perform
        })
    }
}

impl fmt::Debug for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Effects")
            .field("dry_run", &self.dry_run)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_is_held_back_like_the_real_one() {
        let shut: EffectGate = Arc::new(|| {
            Err(Held {
                reason: "a kubelet runs".to_owned(),
            })
        });
        for dry_run in [false, true] {
            let held = Effects::new(Arc::clone(&shut), dry_run).admit().unwrap_err();
            assert_eq!(held.to_string(), "held back: a kubelet runs");
        }
        assert_eq!(Effects::new(Arc::new(|| Ok(())), true).admit(), Ok(Admission::LeaveOut));
        assert_eq!(Effects::unguarded().admit(), Ok(Admission::Perform));
    }
}
