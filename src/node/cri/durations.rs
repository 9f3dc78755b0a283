//! Durations of CRI calls by method and gRPC status code.

use std::{borrow::Cow, time::Duration};

use tonic::Code;

use crate::{
    histogram::{self, Histograms},
    node::grpc::GrpcError,
};

/// Durations of the calls to the container runtime. A canceled call is not counted. Clones share it.
#[derive(Debug, Clone)]
pub struct CallDurations(pub Histograms<2>);

// === impl CallDurations ===

impl CallDurations {
    pub(super) fn observe<T>(&self, method: &'static str, result: &Result<T, GrpcError>, duration: Duration) {
        let code = result.as_ref().map_or_else(|error| error.failure.code(), |_| Code::Ok);
        let labels = [("method", method.into()), ("code", name(code))];
        self.0.get_or_create(&labels).observe(duration.as_secs_f64());
    }
}

impl Default for CallDurations {
    fn default() -> Self {
        Self(Histograms::new_with_constructor(histogram::of_requests))
    }
}

/// Names as in gRPC's own metrics.
fn name(code: Code) -> Cow<'static, str> {
    match code {
        Code::Ok => "OK".into(),
        Code::Cancelled => "Canceled".into(),
        other => format!("{other:?}").into(),
    }
}
