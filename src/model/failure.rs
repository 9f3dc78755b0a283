//! Failures of a step, with a message and a reason to count them by.

use std::{borrow::Cow, fmt, time::Duration};

use super::{mismatch::Mismatch, step::Step};
use crate::why::Why;

/// The gate is shut.
pub const BLOCKED: &str = "blocked";
/// The pod's UID is also that of a static pod.
pub const STATIC_POD: &str = "static_pod";
/// No answer before the timeout.
pub const TIMEOUT: &str = "timeout";
/// A system call that does not return.
pub const HANGS: &str = "hangs";
/// Processes use the file system or device.
pub const BUSY: &str = "busy";
/// The directory is a mount point.
pub const MOUNTED: &str = "mounted";
/// A container or process still runs after its stop.
pub const RUNNING: &str = "running";
/// Every other reason.
pub const OTHER: &str = "other";

/// One failure of a step. The other work of the attempt continues, and the pod is retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The failed step.
    pub step: Step,
    /// Target of the step: a container's name, a path; may be empty.
    pub what: String,
    /// Message for the user.
    pub cause: String,
    /// The reason in one word, for metrics.
    pub reason: Cow<'static, str>,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
    /// The evidence that a user has to approve.
    pub mismatch: Option<Mismatch>,
    /// PIDs of processes that have to exit first, as far as known.
    pub holders: Vec<i32>,
}

/// An error that can be the cause of a failure.
pub trait Reasoned: fmt::Display {
    /// The reason in one word, for metrics.
    fn reason(&self) -> Cow<'static, str> {
        OTHER.into()
    }

    /// PIDs of processes that have to exit first, as far as known.
    fn holders(&self) -> Vec<i32> {
        Vec::new()
    }
}

impl<T: Reasoned + ?Sized> Reasoned for &T {
    fn reason(&self) -> Cow<'static, str> {
        (**self).reason()
    }

    fn holders(&self) -> Vec<i32> {
        (**self).holders()
    }
}

impl Reasoned for str {}

impl Reasoned for String {}

impl Reasoned for fmt::Arguments<'_> {}

// === impl Failure ===

impl Failure {
    /// A failure with the message and reason of `cause`.
    pub fn new(step: Step, what: &str, cause: impl Reasoned) -> Self {
        Self {
            step,
            what: what.to_owned(),
            cause: cause.to_string(),
            reason: cause.reason(),
            retry_after: None,
            mismatch: None,
            holders: cause.holders(),
        }
    }

    /// This failure with another reason.
    #[must_use]
    pub fn with_reason(self, reason: &'static str) -> Self {
        Self {
            reason: reason.into(),
            ..self
        }
    }

    /// Whether a container may still run because of it.
    pub fn is_stop_failure(&self) -> bool {
        matches!(self.step, Step::Hook | Step::Term | Step::Kill)
    }
}

/// Work that continues after a failure returns all of them.
impl From<Failure> for Vec<Failure> {
    fn from(failure: Failure) -> Self {
        vec![failure]
    }
}

/// What the failed work would have shown is not known, because of the first failure.
impl From<Vec<Failure>> for Why {
    fn from(failures: Vec<Failure>) -> Self {
        first_message(&failures).into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_at(f, self.step, &self.what, &self.cause)
    }
}

/// Writes `STEP: MESSAGE`, or `STEP TARGET: MESSAGE` if there is a target.
pub(super) fn write_at(f: &mut fmt::Formatter<'_>, step: Step, target: &str, message: &str) -> fmt::Result {
    if target.is_empty() {
        write!(f, "{step}: {message}")
    } else {
        write!(f, "{step} {target}: {message}")
    }
}

/// # Errors
/// The failures or faults, if there are any.
pub fn ok_if_empty<T>(failures: Vec<T>) -> Result<(), Vec<T>> {
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}

/// The message of the first failure; empty if there is none.
pub fn first_message(failures: &[Failure]) -> String {
    failures.first().map(ToString::to_string).unwrap_or_default()
}

/// Whether the runtime's error is about the pod's network: the CRI has no code for that.
pub fn names_network(error: &str) -> bool {
    let error = error.to_ascii_lowercase();
    ["network", "cni"].iter().any(|word| error.contains(word))
}
