//! One thing that did not work in a step, with its cause in words and in one word for counting.

use std::{borrow::Cow, fmt, time::Duration};

use super::{mismatch::Mismatch, trace::Step};

/// The guard lets nothing pass.
pub const HELD: &str = "held";
/// No answer in time.
pub const TIMEOUT: &str = "timeout";
/// A call into the kernel that does not return.
pub const HANGS: &str = "hangs";
/// Processes use it.
pub const BUSY: &str = "busy";
/// It is a mount point.
pub const MOUNTED: &str = "mounted";
/// A container or process that runs after its stop.
pub const RUNNING: &str = "running";
/// Every cause without a word of its own.
pub const OTHER: &str = "other";

/// One thing that did not work. The rest goes on, and the pod is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// In which step.
    pub step: Step,
    /// With what: a container's name, a path; may be empty.
    pub what: String,
    /// Why.
    pub cause: String,
    /// The same in one word.
    pub reason: Cow<'static, str>,
    /// How long whoever refused asks to be left alone.
    pub retry_after: Option<Duration>,
    /// The facts that a user has to approve.
    pub mismatch: Option<Mismatch>,
    /// Processes that have to end first, as far as they are known.
    pub held_by: Vec<i32>,
}

/// Something that can be the cause of a failure.
pub trait Reasoned: fmt::Display {
    /// In one word.
    fn reason(&self) -> Cow<'static, str> {
        OTHER.into()
    }
}

impl<T: Reasoned + ?Sized> Reasoned for &T {
    fn reason(&self) -> Cow<'static, str> {
        (**self).reason()
    }
}

impl Reasoned for str {}

impl Reasoned for String {}

impl Reasoned for fmt::Arguments<'_> {}

// === impl Failure ===

impl Failure {
    /// A failure with its cause in words.
    pub fn new(step: Step, what: &str, cause: impl Reasoned) -> Self {
        Self {
            step,
            what: what.to_owned(),
            cause: cause.to_string(),
            reason: cause.reason(),
            retry_after: None,
            mismatch: None,
            held_by: Vec::new(),
        }
    }

    /// Whether a container may run on because of it.
    pub fn is_of_a_stop(&self) -> bool {
        matches!(self.step, Step::Hook | Step::Term | Step::Kill)
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

/// Failures as a result.
pub fn collected(failures: Vec<Failure>) -> Result<(), Vec<Failure>> {
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}

/// The first failure, where there is room for one.
pub fn first(failures: &[Failure]) -> String {
    failures.first().map(ToString::to_string).unwrap_or_default()
}
