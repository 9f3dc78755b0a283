//! What can go wrong between the agent and the container runtime.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tonic::{Code, Status};

use crate::{
    model::{
        failure::{HELD, Reasoned},
        foreign::ForeignText,
    },
    node::effects::Held,
};

/// A call that failed: which one, on what, and how.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CriError {
    /// No connection, or it broke while the call was out: what the runtime did is not known.
    #[error("{call}: the runtime cannot be reached: {cause}")]
    Unreachable {
        /// The call.
        call: Call,
        /// The innermost cause.
        cause: String,
    },
    /// Somebody listens there who does not speak gRPC.
    #[error("{call}: what listens on the socket does not speak gRPC: {cause}")]
    Foreign {
        /// The call.
        call: Call,
        /// How that was seen.
        cause: String,
    },
    /// No answer in time: what the runtime did is not known.
    #[error("{call}: no answer within {after:?}")]
    Timeout {
        /// The call.
        call: Call,
        /// How long the answer was waited for.
        after: Duration,
    },
    /// The runtime said no.
    #[error("{call}: {code:?}: {message}{}", remedy(message))]
    Failed {
        /// The call.
        call: Call,
        /// The runtime's class of error.
        code: Code,
        /// The runtime's words.
        message: String,
    },
    /// The answer lacks what it must have.
    #[error("{call}: the answer has no {what}")]
    Incomplete {
        /// The call.
        call: Call,
        /// What is missing.
        what: &'static str,
    },
    /// Effects are not allowed now; nothing was sent.
    #[error("{call}: {held}")]
    Held {
        /// The call that was not made.
        call: Call,
        /// Why.
        held: Held,
    },
}

/// A CRI call and what it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Name of the call.
    pub name: &'static str,
    /// Id of the container or sandbox, UID of the pod; empty if it is about none.
    pub id: String,
}

/// What helps where no call of the CRI does.
fn remedy(message: &str) -> &'static str {
    if message.contains("cannot delete running task") {
        "; if this stays, a start that was cut short may have left it to containerd (its issue 11037), and no call of the CRI removes \
         it: a restart of containerd may, and ends no container"
    } else {
        ""
    }
}

// === impl CriError ===

impl CriError {
    pub(crate) fn from_status(call: Call, status: &Status) -> Self {
        // A status that came over the wire has no source; one that tonic made of a broken connection has.
        if let Some(source) = status.source() {
            let cause = ForeignText::new(&innermost(source).to_string()).into();
            return if is_foreign(source) {
                Self::Foreign { call, cause }
            } else {
                Self::Unreachable { call, cause }
            };
        }
        Self::Failed {
            call,
            code: status.code(),
            message: ForeignText::new(status.message()).into(),
        }
    }

    /// The call that this is about.
    pub fn call(&self) -> &Call {
        match self {
            Self::Unreachable { call, .. }
            | Self::Foreign { call, .. }
            | Self::Timeout { call, .. }
            | Self::Failed { call, .. }
            | Self::Incomplete { call, .. }
            | Self::Held { call, .. } => call,
        }
    }

    /// Whether the same call may succeed later without anybody changing it or the runtime's configuration.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Timeout { .. } | Self::Held { .. } => true,
            Self::Foreign { .. } | Self::Incomplete { .. } => false,
            Self::Failed { code, .. } => !matches!(
                code,
                Code::InvalidArgument
                    | Code::NotFound
                    | Code::OutOfRange
                    | Code::PermissionDenied
                    | Code::Unauthenticated
                    | Code::Unimplemented
            ),
        }
    }

    /// Whether the runtime itself was out of reach, as opposed to the call having failed.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Failed { code, .. } => *code == Code::Unavailable,
            Self::Foreign { .. } | Self::Timeout { .. } | Self::Incomplete { .. } | Self::Held { .. } => false,
        }
    }

    /// Whether whatever listens there is no CRI v1 runtime: another protocol, or gRPC without the service.
    pub fn is_not_a_runtime(&self) -> bool {
        matches!(self, Self::Foreign { .. }) || self.is_unknown_call()
    }

    /// Whether the runtime is too old to know this call.
    pub fn is_unknown_call(&self) -> bool {
        matches!(
            self,
            Self::Failed {
                code: Code::Unimplemented,
                ..
            }
        )
    }

    /// Whether the answer is larger than a message may be: for our side (`OutOfRange`) or the runtime's.
    pub(super) fn is_too_large(&self) -> bool {
        matches!(
            self,
            Self::Failed {
                code: Code::OutOfRange | Code::ResourceExhausted,
                ..
            }
        )
    }

    pub(super) fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::Failed {
                code: Code::NotFound,
                ..
            }
        )
    }
}

/// An error and all that it was made of.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

fn innermost<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    chain(error).last().unwrap_or(error)
}

/// Our own HTTP/2 side refused what it read. An error that the peer sent is no sign of a foreign protocol, and neither
/// is one of the socket.
fn is_foreign(error: &(dyn Error + 'static)) -> bool {
    chain(error)
        .filter_map(|error| error.downcast_ref::<h2::Error>())
        .any(|h2| h2.reason().is_some() && !h2.is_remote())
}

// === impl Call ===

impl Call {
    pub(crate) fn new(name: &'static str, id: &str) -> Self {
        Self {
            name,
            id: id.to_owned(),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.id.is_empty() {
            f.write_str(self.name)
        } else {
            write!(f, "{} {}", self.name, self.id)
        }
    }
}

impl Reasoned for CriError {
    /// A class of gRPC's, where the runtime has answered.
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        match self {
            Self::Failed { code, .. } => format!("{code:?}").into(),
            Self::Unreachable { .. } => "unreachable".into(),
            Self::Timeout { .. } => "timeout".into(),
            Self::Foreign { .. } | Self::Incomplete { .. } => "unreadable".into(),
            Self::Held { .. } => HELD.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_get_better_by_itself_is_not_retryable() {
        let failed = |code| CriError::Failed {
            call: Call::new("StopContainer", "c"),
            code,
            message: String::new(),
        };
        let hopeless = [
            Code::InvalidArgument,
            Code::NotFound,
            Code::OutOfRange,
            Code::PermissionDenied,
            Code::Unauthenticated,
            Code::Unimplemented,
        ];
        for code in (0..=16).map(Code::from_i32).filter(|code| *code != Code::Ok) {
            assert_eq!(failed(code).is_retryable(), !hopeless.contains(&code), "{code:?}");
        }
    }

    #[test]
    fn an_error_names_the_call_and_what_it_was_about() {
        let cause = "No such file or directory (os error 2)".to_owned();
        let error = CriError::Unreachable {
            call: Call::new("Version", ""),
            cause,
        };
        let text = "Version: the runtime cannot be reached: No such file or directory (os error 2)";
        assert_eq!(error.to_string(), text);
        let error = CriError::Timeout {
            call: Call::new("StopContainer", "abc"),
            after: Duration::from_secs(150),
        };
        assert_eq!(error.to_string(), "StopContainer abc: no answer within 150s");
        let error = CriError::Failed {
            call: Call::new("RemoveContainer", "abc"),
            code: Code::FailedPrecondition,
            message: "cannot delete running task abc: failed precondition".to_owned(),
        };
        assert!(error.to_string().contains("a restart of containerd may"), "{error}");
    }
}
