//! Errors of gRPC calls on this node: to the container runtime or a driver.

use std::{error::Error, fmt, time::Duration};

use tonic::{Code, Status};

use crate::{
    model::{
        blocked::Blocked,
        failure::{BLOCKED, OTHER, Reasoned},
        foreign::ForeignText,
    },
    words::without_error_codes,
};

/// A failed call: which one, its target, and how it failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrpcError {
    /// No connection, or it broke during the call. What the peer did is unknown.
    #[error("{call}: the {} cannot be reached: {cause}", call.peer.label())]
    Unreachable {
        /// The call.
        call: Call,
        /// The innermost cause.
        cause: String,
    },
    /// The server does not speak gRPC. Only reported for the runtime.
    #[error("{call}: the server on the socket does not speak gRPC: {cause}")]
    Foreign {
        /// The call.
        call: Call,
        /// How that was detected.
        cause: String,
    },
    /// No answer in time. What the peer did is unknown.
    #[error("{call}: no answer within {after:?}")]
    Timeout {
        /// The call.
        call: Call,
        /// How long the call waited.
        after: Duration,
    },
    /// The peer answered with an error.
    #[error("{call}: {code:?}: {message}{}", remedy(message))]
    Failed {
        /// The call.
        call: Call,
        /// The gRPC status code.
        code: Code,
        /// The peer's message.
        message: String,
    },
    /// The path is not UTF-8 and cannot be sent.
    #[error("{call}: the path is not UTF-8")]
    PathNotUtf8 {
        /// The call that was not made.
        call: Call,
    },
    /// Effects are blocked; nothing was sent.
    #[error("{call}: blocked: {blocked}")]
    Blocked {
        /// The call that was not made.
        call: Call,
        /// Why.
        blocked: Blocked,
    },
}

/// A call and its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Name of the call.
    pub name: &'static str,
    /// The called peer.
    pub peer: Peer,
    /// ID of a container or sandbox, UID of a pod, a path, or claims; may be empty.
    pub target: String,
    /// The driver's ID of the volume.
    pub volume: Option<String>,
}

/// The peer of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// The container runtime.
    Runtime,
    /// A driver, by its name, or by its registration socket while the name is unknown.
    Driver(String),
}

/// A remedy for errors that no CRI call can clear.
fn remedy(message: &str) -> &'static str {
    if message.contains("cannot delete running task") {
        "; if this persists, an interrupted start may have left the task in containerd (containerd issue 11037). No CRI call \
         removes it; a restart of containerd may, and stops no container"
    } else {
        ""
    }
}

// === impl GrpcError ===

impl GrpcError {
    pub(crate) fn from_status(call: Call, status: &Status) -> Self {
        // A status from the wire has no source. One that tonic creates for a broken connection has.
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

    /// The failed call.
    pub fn call(&self) -> &Call {
        match self {
            Self::Unreachable { call, .. }
            | Self::Foreign { call, .. }
            | Self::Timeout { call, .. }
            | Self::Failed { call, .. }
            | Self::PathNotUtf8 { call }
            | Self::Blocked { call, .. } => call,
        }
    }

    /// Whether the peer was unreachable. False if the call failed or timed out.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Failed { code, .. } => *code == Code::Unavailable,
            Self::Foreign { .. } | Self::Timeout { .. } | Self::PathNotUtf8 { .. } | Self::Blocked { .. } => false,
        }
    }

    /// Whether the server is not a CRI v1 runtime: it speaks another protocol, or gRPC without this service.
    pub fn is_not_a_runtime(&self) -> bool {
        matches!(self, Self::Foreign { .. }) || self.code() == Some(Code::Unimplemented)
    }

    pub(super) fn is_not_found(&self) -> bool {
        self.code() == Some(Code::NotFound)
    }

    /// Whether the driver answered that the volume does not exist.
    pub fn is_unknown_volume(&self) -> bool {
        self.call().volume.is_some() && self.is_not_found()
    }

    /// Whether the gate blocked the call, so that other calls would fail as well.
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

/// An error and its sources.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

fn cause_of(error: &(dyn Error + 'static)) -> String {
    let innermost = chain(error).last().unwrap_or(error);
    ForeignText::new(&without_error_codes(&innermost.to_string())).into()
}

/// Whether the agent's own HTTP/2 side rejected what it read. An error sent by the peer, or by the socket, does not prove
/// another protocol.
fn is_foreign(error: &(dyn Error + 'static)) -> bool {
    chain(error)
        .filter_map(|error| error.downcast_ref::<h2::Error>())
        .any(|h2| h2.reason().is_some() && !h2.is_remote())
}

// === impl Call ===

impl Call {
    /// A call to the runtime about this ID.
    pub(crate) fn to_runtime(name: &'static str, id: &str) -> Self {
        Self {
            name,
            peer: Peer::Runtime,
            target: id.to_owned(),
            volume: None,
        }
    }

    /// A call to a driver about this path or these claims.
    pub(crate) fn to_driver(name: &'static str, driver: &str, target: impl Into<String>) -> Self {
        Self {
            name,
            peer: Peer::Driver(driver.to_owned()),
            target: target.into(),
            volume: None,
        }
    }

    /// Sets the volume: the driver's storage knows it by that ID, not by the agent's path.
    pub(super) fn for_volume(self, volume: &str) -> Self {
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
    fn label(&self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::Driver(_) => "driver",
        }
    }
}

impl Reasoned for GrpcError {
    /// The gRPC status code if the peer answered.
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        match self {
            Self::Failed { code, .. } => format!("{code:?}").into(),
            Self::Unreachable { .. } => "unreachable".into(),
            Self::Timeout { .. } => "timeout".into(),
            Self::Foreign { .. } => "unreadable".into(),
            Self::PathNotUtf8 { .. } => OTHER.into(),
            Self::Blocked { .. } => BLOCKED.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_call_and_its_target() {
        let cause = "No such file or directory".to_owned();
        let error = GrpcError::Unreachable {
            call: Call::to_runtime("Version", ""),
            cause,
        };
        let text = "Version: the runtime cannot be reached: No such file or directory";
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
    fn driver_error_is_one_line_with_driver_call_and_code() {
        let call = Call::to_driver("NodeUnpublishVolume", "csi.example.com", "/pods/u/mount").for_volume("vol/1");
        let error = GrpcError::from_status(call, &Status::internal("umount: busy\nERROR forged"));
        assert_eq!(
            error.to_string(),
            "NodeUnpublishVolume of driver \"csi.example.com\" for volume \"vol/1\": Internal: umount: busy\\nERROR forged"
        );
    }
}
