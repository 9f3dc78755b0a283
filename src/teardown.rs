//! Taking a pod down: each step idempotent, failures collected, nothing cut short by one of them.

use std::{borrow::Cow, fmt, time::Duration};

use crate::{
    api::ApiError,
    model::{mismatch::Doubt, trace::Step},
    node::fault::{Cause, Fault},
    teardown::reason::Reasoned,
};

pub mod busy;
pub mod cleanup;
mod containers;
pub mod devices;
pub mod drivers;
pub mod evidence;
pub mod hooks;
mod http_hook;
pub mod late;
pub mod node_service;
pub mod on_disk;
pub mod places;
pub mod pod_dir;
pub mod reason;
pub mod runtime_state;
pub mod stop;
pub mod user_namespace;
pub mod volumes;

/// How an event `FailedKillPod` begins, as the kubelet's.
pub const NOT_KILLED: &str = "error killing pod";

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
    /// What only a person can settle.
    pub doubt: Option<Doubt>,
    /// Processes that have to end first, as far as they are known.
    pub held_by: Vec<i32>,
}

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
            doubt: None,
            held_by: Vec::new(),
        }
    }

    /// A request that failed, with what the server says of another one.
    pub fn of_request(step: Step, error: &ApiError) -> Self {
        Self {
            retry_after: error.retry_after(),
            ..Self::new(step, "", error)
        }
    }

    /// What the node refused.
    pub fn of_node(step: Step, fault: &Fault) -> Self {
        let held_by = match &fault.cause {
            Cause::Busy(holders) => holders.processes.iter().map(|holder| holder.pid).collect(),
            _ => Vec::new(),
        };
        Self {
            held_by,
            ..Self::new(step, "", fault)
        }
    }

    /// Whether a container may run on because of it.
    pub fn is_of_a_stop(&self) -> bool {
        matches!(self.step, Step::Hook | Step::Term | Step::Kill)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.what.is_empty() {
            write!(f, "{}: {}", self.step, self.cause)
        } else {
            write!(f, "{} {}: {}", self.step, self.what, self.cause)
        }
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
