//! Durations of CRI calls by method and gRPC status code.

use std::time::Duration;

use tonic::Code;

use crate::{
    histogram::{Histogram, REQUEST_BOUNDS, Snapshot},
    node::grpc::GrpcError,
};

/// Method and status code of a call.
pub type CallLabels = (&'static str, &'static str);

/// Durations of the calls to the container runtime. A canceled call is not counted.
#[derive(Debug)]
pub struct CallDurations(Histogram<CallLabels>);

// === impl CallDurations ===

impl CallDurations {
    /// A copy of all series.
    pub fn snapshot(&self) -> Snapshot<CallLabels> {
        self.0.snapshot()
    }

    pub(super) fn observe<T>(&self, method: &'static str, result: &Result<T, GrpcError>, duration: Duration) {
        let code = match result {
            Ok(_) => Code::Ok,
            Err(GrpcError::Failed { code, .. }) => *code,
            Err(GrpcError::Timeout { .. }) => Code::DeadlineExceeded,
            Err(GrpcError::Unreachable { .. }) => Code::Unavailable,
            Err(
                GrpcError::Foreign { .. }
                | GrpcError::Incomplete { .. }
                | GrpcError::PathNotUtf8 { .. }
                | GrpcError::Blocked { .. },
            ) => Code::Unknown,
        };
        self.0.observe((method, name(code)), duration);
    }
}

impl Default for CallDurations {
    fn default() -> Self {
        Self(Histogram::new(REQUEST_BOUNDS))
    }
}

/// Names as in gRPC's own metrics.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
