//! What can go wrong between the agent and a gRPC peer on this node: the container runtime or a driver.

use std::{error::Error, fmt, time::Duration};

use tonic::{Code, Status};

use crate::{
    model::{
        failure::{HELD, OTHER, Reasoned},
        foreign::ForeignText,
    },
    node::effects::EffectsBlocked,
};

/// A call that failed: which one, on what, and how.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrpcError {
    /// No connection, or it broke while the call was out: what the peer did is not known.
    #[error("{call}: the {} cannot be reached: {cause}", call.peer.word())]
    Unreachable {
        /// The call.
        call: Call,
        /// The innermost cause.
        cause: String,
    },
    /// What listens there does not speak gRPC. Told of the runtime only.
    #[error("{call}: what listens on the socket does not speak gRPC: {cause}")]
    Foreign {
        /// The call.
        call: Call,
        /// How that was seen.
        cause: String,
    },
    /// No answer in time: what the peer did is not known.
    #[error("{call}: no answer within {after:?}")]
    Timeout {
        /// The call.
        call: Call,
        /// How long the answer was waited for.
        after: Duration,
    },
    /// The peer said no.
    #[error("{call}: {code:?}: {message}{}", remedy(message))]
    Failed {
        /// The call.
        call: Call,
        /// The peer's class of error.
        code: Code,
        /// The peer's message.
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
    /// The path cannot be sent.
    #[error("{call}: the path is no UTF-8")]
    PathNotUtf8 {
        /// The call that was not made.
        call: Call,
    },
    /// Effects are not allowed now; nothing was sent.
    #[error("{call}: {held}")]
    Blocked {
        /// The call that was not made.
        call: Call,
        /// Why.
        held: EffectsBlocked,
    },
}

/// A call and what it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Name of the call.
    pub name: &'static str,
    /// Who is called.
    pub peer: Peer,
    /// Id of a container or sandbox, UID of a pod, a path, or claims; empty if it is about none.
    pub target: String,
    /// The driver's own name of the volume that it is about.
    pub volume: Option<String>,
}

/// Who is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// The container runtime.
    Runtime,
    /// A driver, by its name, or its registration socket while that is not known.
    Driver(String),
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

// === impl GrpcError ===

impl GrpcError {
    pub(crate) fn from_status(call: Call, status: &Status) -> Self {
        // A status that came over the wire has no source; one that tonic made of a broken connection has.
        if let Some(source) = status.source() {
            return if call.peer == Peer::Runtime && is_foreign(source) {
                let cause = cause_of(source);
                Self::Foreign { call, cause }
            } else {
                Self::unreachable(call, source)
            };
        }
        Self::Failed {
            call,
            code: status.code(),
            message: ForeignText::new(status.message()).into(),
        }
    }

    pub(crate) fn unreachable(call: Call, error: &(dyn Error + 'static)) -> Self {
        let cause = cause_of(error);
        Self::Unreachable { call, cause }
    }

    /// The call that this is about.
    pub fn call(&self) -> &Call {
        match self {
            Self::Unreachable { call, .. }
            | Self::Foreign { call, .. }
            | Self::Timeout { call, .. }
            | Self::Failed { call, .. }
            | Self::Incomplete { call, .. }
            | Self::PathNotUtf8 { call }
            | Self::Blocked { call, .. } => call,
        }
    }

    /// Whether the same call may succeed later without anybody changing it or the peer's configuration.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Timeout { .. } | Self::Blocked { .. } => true,
            Self::Foreign { .. } | Self::Incomplete { .. } | Self::PathNotUtf8 { .. } => false,
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

    /// Whether the peer itself was out of reach, as opposed to the call having failed or hung.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Failed { code, .. } => *code == Code::Unavailable,
            Self::Foreign { .. }
            | Self::Timeout { .. }
            | Self::Incomplete { .. }
            | Self::PathNotUtf8 { .. }
            | Self::Blocked { .. } => false,
        }
    }

    /// Whether whatever listens there is no CRI v1 runtime: another protocol, or gRPC without the service.
    pub fn is_not_a_runtime(&self) -> bool {
        matches!(self, Self::Foreign { .. }) || self.is_unknown_call()
    }

    /// Whether the runtime is too old to know this call.
    pub fn is_unknown_call(&self) -> bool {
        self.code() == Some(Code::Unimplemented)
    }

    /// Whether the answer is larger than a message may be: for our side (`OutOfRange`) or the peer's.
    pub(super) fn is_too_large(&self) -> bool {
        matches!(self.code(), Some(Code::OutOfRange | Code::ResourceExhausted))
    }

    pub(super) fn is_not_found(&self) -> bool {
        self.code() == Some(Code::NotFound)
    }

    /// Whether the driver has answered that there is no such volume.
    pub fn is_unknown_volume(&self) -> bool {
        self.call().volume.is_some() && self.is_not_found()
    }

    /// Whether the gate was the cause, so that trying anything else now is in vain.
    pub fn is_blocked(&self) -> bool {
        matches!(self, Self::Blocked { .. })
    }

    fn code(&self) -> Option<Code> {
        match self {
            Self::Failed { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// An error and all that it was made of.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

fn cause_of(error: &(dyn Error + 'static)) -> String {
    let innermost = chain(error).last().unwrap_or(error);
    ForeignText::new(&innermost.to_string()).into()
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
    /// A call of the runtime, about this id.
    pub(crate) fn to_runtime(name: &'static str, id: &str) -> Self {
        Self {
            name,
            peer: Peer::Runtime,
            target: id.to_owned(),
            volume: None,
        }
    }

    /// A call of a driver, about this path or these claims.
    pub(crate) fn to_driver(name: &'static str, driver: &str, target: impl Into<String>) -> Self {
        Self {
            name,
            peer: Peer::Driver(driver.to_owned()),
            target: target.into(),
            volume: None,
        }
    }

    /// The same, about this volume: the driver's storage knows it by that name, and not by our path.
    pub(super) fn about(self, volume: &str) -> Self {
        let volume = Some(volume.to_owned());
        Self { volume, ..self }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        let driver = match &self.peer {
            Peer::Runtime if self.target.is_empty() => return Ok(()),
            Peer::Runtime => return write!(f, " {}", self.target),
            Peer::Driver(driver) => driver,
        };
        write!(f, " of driver {driver:?}")?;
        match &self.volume {
            Some(volume) => write!(f, " for volume {volume:?}"),
            None if self.target.is_empty() => Ok(()),
            None => write!(f, " for {:?}", self.target),
        }
    }
}

// === impl Peer ===

impl Peer {
    fn word(&self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::Driver(_) => "driver",
        }
    }
}

impl Reasoned for GrpcError {
    /// A class of gRPC's, where the peer has answered.
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        match self {
            Self::Failed { code, .. } => format!("{code:?}").into(),
            Self::Unreachable { .. } => "unreachable".into(),
            Self::Timeout { .. } => "timeout".into(),
            Self::Foreign { .. } | Self::Incomplete { .. } => "unreadable".into(),
            Self::PathNotUtf8 { .. } => OTHER.into(),
            Self::Blocked { .. } => HELD.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_get_better_by_itself_is_not_retryable() {
        let failed = |code| GrpcError::Failed {
            call: Call::to_runtime("StopContainer", "c"),
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
        let error = GrpcError::Unreachable {
            call: Call::to_runtime("Version", ""),
            cause,
        };
        let text = "Version: the runtime cannot be reached: No such file or directory (os error 2)";
        assert_eq!(error.to_string(), text);
        let error = GrpcError::Timeout {
            call: Call::to_runtime("StopContainer", "abc"),
            after: Duration::from_secs(150),
        };
        assert_eq!(error.to_string(), "StopContainer abc: no answer within 150s");
        let error = GrpcError::Failed {
            call: Call::to_runtime("RemoveContainer", "abc"),
            code: Code::FailedPrecondition,
            message: "cannot delete running task abc: failed precondition".to_owned(),
        };
        assert!(error.to_string().contains("a restart of containerd may"), "{error}");
    }

    #[test]
    fn whatever_a_driver_says_stays_on_one_line_and_names_driver_call_and_code() {
        let call = Call::to_driver("NodeUnpublishVolume", "csi.example.com", "/pods/u/mount").about("vol/1");
        let error = GrpcError::from_status(call, &Status::internal("umount: busy\nERROR forged"));
        assert_eq!(
            error.to_string(),
            "NodeUnpublishVolume of driver \"csi.example.com\" for volume \"vol/1\": Internal: umount: busy\\nERROR forged"
        );
    }
}
