//! Failures of a step, with a message and a reason to count them by.

use std::{borrow::Cow, fmt, time::Duration};

use super::{
    mismatch::Mismatch,
    step::Step,
    waits_for::{self, WaitsFor},
};

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
    /// What it waits for, as far as known: all that the message names.
    pub waits_for: Vec<WaitsFor>,
}

/// An error that can be the cause of a failure.
pub trait Reasoned: fmt::Display {
    /// The reason in one word, for metrics.
    fn reason(&self) -> Cow<'static, str> {
        OTHER.into()
    }

    /// What the failed step waits for: everything that the message names.
    fn waits_for(&self) -> Vec<WaitsFor> {
        Vec::new()
    }
}

impl<T: Reasoned + ?Sized> Reasoned for &T {
    fn reason(&self) -> Cow<'static, str> {
        (**self).reason()
    }

    fn waits_for(&self) -> Vec<WaitsFor> {
        (**self).waits_for()
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
            waits_for: cause.waits_for(),
        }
    }

    /// The same failure, which waits for these, too.
    #[must_use]
    pub fn waiting_for(mut self, more: impl IntoIterator<Item = WaitsFor>) -> Self {
        waits_for::add(&mut self.waits_for, more);
        self
    }

    /// Whether a container may still run because of it.
    pub fn is_stop_failure(&self) -> bool {
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

/// # Errors
/// The failures, if there are any.
pub fn ok_if_empty(failures: Vec<Failure>) -> Result<(), Vec<Failure>> {
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
