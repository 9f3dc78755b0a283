//! Errors of gRPC calls on this node: to the container runtime or a driver.

use std::{error::Error, fmt, time::Duration};

use http::Uri;
use tonic::{
    Code, Status,
    transport::{self, Endpoint},
};

use crate::{
    model::{
        blocked::Blocked,
        failure::{BLOCKED, OTHER, Reasoned},
        foreign::ForeignText,
    },
    words::without_error_codes,
};

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {failure}")]
pub struct GrpcError {
    /// The call. [`CallFailure::PathNotUtf8`] and [`CallFailure::Blocked`]: it was not made.
    pub call: Call,
    /// How it failed.
    pub failure: CallFailure,
}

/// How a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallFailure {
    /// No connection to this peer, or it broke during the call; with the innermost cause. What the peer did is unknown.
    #[error("the {0} cannot be reached: {1}")]
    Unreachable(&'static str, String),
    /// The server does not speak gRPC, with how that was detected. Only reported for the runtime.
    #[error("the server on the socket does not speak gRPC: {0}")]
    Foreign(String),
    /// No answer within this time. What the peer did is unknown.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The peer answered with an error.
    #[error("{code:?}: {message}{}", remedy(message))]
    Failed {
        /// The gRPC status code.
        code: Code,
        /// The peer's message.
        message: String,
    },
    /// The path is not UTF-8 and cannot be sent.
    #[error("the path is not UTF-8")]
    PathNotUtf8,
    /// Effects are blocked.
    #[error("blocked: {0}")]
    Blocked(Blocked),
}

/// A call and its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Name of the call.
    pub name: &'static str,
    /// The called driver, by its name, or by its registration socket while the name is unknown; `None` for the container runtime.
    pub driver: Option<String>,
    /// ID of a container or sandbox, UID of a pod, a path, or claims; may be empty.
    pub target: String,
    /// The driver's ID of the volume.
    pub volume: Option<String>,
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

/// The server on this socket. The authority is sent but ignored. Servers written in Go would refuse a path here.
pub(super) fn endpoint(socket: &str) -> Result<Endpoint, transport::Error> {
    let endpoint = Endpoint::from_shared(format!("unix://{socket}"))?;
    Ok(endpoint.origin(Uri::from_static("http://localhost")))
}

// === impl GrpcError ===

impl GrpcError {
    /// Whether the peer was unreachable. False if the call failed or timed out.
    pub fn is_unreachable(&self) -> bool {
        self.failure.code() == Code::Unavailable
    }

    /// Whether the server is not a CRI v1 runtime: it speaks another protocol, or gRPC without this service.
    pub fn is_not_a_runtime(&self) -> bool {
        matches!(self.failure, CallFailure::Foreign(_)) || self.failure.code() == Code::Unimplemented
    }

    pub(super) fn is_not_found(&self) -> bool {
        self.failure.code() == Code::NotFound
    }

    /// Whether the driver answered that the volume does not exist.
    pub fn is_unknown_volume(&self) -> bool {
        self.call.volume.is_some() && self.is_not_found()
    }

    /// Whether the gate blocked the call, so that other calls would fail as well.
    pub fn is_blocked(&self) -> bool {
        matches!(self.failure, CallFailure::Blocked(_))
    }
}

// === impl CallFailure ===

impl CallFailure {
    /// The status code; of a call without an answer that of Go's gRPC.
    pub(super) fn code(&self) -> Code {
        match self {
            Self::Failed { code, .. } => *code,
            Self::Timeout(_) => Code::DeadlineExceeded,
            Self::Unreachable(..) => Code::Unavailable,
            Self::Foreign(_) | Self::PathNotUtf8 | Self::Blocked(_) => Code::Unknown,
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
    /// The error of this call.
    pub(crate) fn failed(self, failure: CallFailure) -> GrpcError {
        GrpcError { call: self, failure }
    }

    /// The error of this call without a connection.
    pub(super) fn unreachable(self, error: &(dyn Error + 'static)) -> GrpcError {
        let peer = self.driver.as_ref().map_or("runtime", |_| "driver");
        self.failed(CallFailure::Unreachable(peer, cause_of(error)))
    }

    /// The error of this call by its answer.
    pub(crate) fn refused(self, status: &Status) -> GrpcError {
        // A status from the wire has no source. One that tonic creates for a broken connection has.
        match status.source() {
            Some(source) if self.driver.is_none() && is_foreign(source) => {
                self.failed(CallFailure::Foreign(cause_of(source)))
            }
            Some(source) => self.unreachable(source),
            None => self.failed(CallFailure::Failed {
                code: status.code(),
                message: ForeignText::new(status.message()).into(),
            }),
        }
    }

    /// A call to the runtime about this ID.
    pub(crate) fn to_runtime(name: &'static str, id: &str) -> Self {
        Self {
            name,
            driver: None,
            target: id.to_owned(),
            volume: None,
        }
    }

    /// A call to a driver about this path or these claims.
    pub(crate) fn to_driver(name: &'static str, driver: &str, target: impl Into<String>) -> Self {
        Self {
            name,
            driver: Some(driver.to_owned()),
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
        let driver = match &self.driver {
            None if self.target.is_empty() => return Ok(()),
            None => return write!(f, " {}", self.target),
            Some(driver) => driver,
        };
        write!(f, " of driver {driver:?}")?;
        match &self.volume {
            Some(volume) => write!(f, " for volume {volume:?}"),
            None if self.target.is_empty() => Ok(()),
            None => write!(f, " for {:?}", self.target),
        }
    }
}

impl Reasoned for GrpcError {
    /// The gRPC status code if the peer answered.
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        match &self.failure {
            CallFailure::Failed { code, .. } => format!("{code:?}").into(),
            CallFailure::Unreachable(..) => "unreachable".into(),
            CallFailure::Timeout(_) => "timeout".into(),
            CallFailure::Foreign(_) => "unreadable".into(),
            CallFailure::PathNotUtf8 => OTHER.into(),
            CallFailure::Blocked(_) => BLOCKED.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_call_and_its_target() {
        let runtime = Call::to_runtime("Version", "");
        let error = runtime.unreachable(&std::io::Error::other("No such file or directory"));
        let text = "Version: the runtime cannot be reached: No such file or directory";
        assert_eq!(error.to_string(), text);
        let stop = Call::to_runtime("StopContainer", "abc");
        let error = stop.failed(CallFailure::Timeout(Duration::from_secs(150)));
        assert_eq!(error.to_string(), "StopContainer abc: no answer within 150s");
        let status = Status::failed_precondition("cannot delete running task abc: failed precondition");
        let error = Call::to_runtime("RemoveContainer", "abc").refused(&status);
        assert!(error.to_string().contains("a restart of containerd may"), "{error}");
    }

    #[test]
    fn driver_error_is_one_line_with_driver_call_and_code() {
        let call = Call::to_driver("NodeUnpublishVolume", "csi.example.com", "/pods/u/mount").for_volume("vol/1");
        let error = call.refused(&Status::internal("umount: busy\nERROR forged"));
        assert_eq!(
            error.to_string(),
            "NodeUnpublishVolume of driver \"csi.example.com\" for volume \"vol/1\": Internal: umount: busy\\nERROR forged"
        );
    }
}
