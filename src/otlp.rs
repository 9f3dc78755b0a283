//! Exports traces of terminated pods to an OpenTelemetry collector (OTLP over gRPC).
//!
//! `worker → queue → convert → send`

mod convert;
mod wire;

use std::{sync::Arc, time::Duration};

use backon::{ExponentialBuilder, Retryable as _};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::timeout,
};
use tonic::{Code, Request, Status, metadata::MetadataMap, transport::Endpoint};

use self::wire::{ExportTraceServiceRequest, ResourceSpans, trace_service_client::TraceServiceClient};
use crate::{counters::Counters, model::trace::Trace};

pub use convert::Outcome;

/// Traces that wait for the collector. More are dropped.
const QUEUE: usize = 256;
/// Traces in one request.
const BATCH: usize = 64;
/// Maximum time of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Retries of one request, with pauses that double from one second.
const RETRIES: usize = 4;

/// A collector of traces.
#[derive(Debug, Clone)]
pub struct OtlpCollector {
    /// Its address, with the settings for TLS.
    pub endpoint: Endpoint,
    /// Sent with each request, such as a token.
    pub headers: MetadataMap,
}

/// Takes traces of pods. Cheap to clone; never waits.
#[derive(Debug, Clone)]
pub struct TraceExporter {
    queue: mpsc::Sender<(Trace, Outcome)>,
    counters: Arc<Counters>,
}

/// Sends queued traces.
pub struct TraceSender {
    queue: mpsc::Receiver<(Trace, Outcome)>,
    client: TraceServiceClient<tonic::transport::Channel>,
    headers: MetadataMap,
    node: String,
    counters: Arc<Counters>,
    /// Traces of the request in progress.
    in_request: u64,
}

/// An exporter to this collector, and its sender. It connects at its first request.
pub fn exporter(collector: OtlpCollector, node: &str, counters: Arc<Counters>) -> (TraceExporter, TraceSender) {
    let OtlpCollector { endpoint, headers } = collector;
    let (sender, queue) = mpsc::channel(QUEUE);
    let channel = endpoint
        .timeout(REQUEST_TIMEOUT)
        .connect_timeout(REQUEST_TIMEOUT)
        .connect_lazy();
    let exporter = TraceExporter {
        queue: sender,
        counters: Arc::clone(&counters),
    };
    let sender = TraceSender {
        queue,
        client: TraceServiceClient::new(channel),
        headers,
        node: node.to_owned(),
        counters,
        in_request: 0,
    };
    (exporter, sender)
}

// === impl TraceExporter ===

impl TraceExporter {
    /// Queues a trace. It is dropped, counted and logged if the queue is full.
    pub fn export(&self, trace: Trace, outcome: Outcome) {
        let Err(TrySendError::Full((trace, _)) | TrySendError::Closed((trace, _))) =
            self.queue.try_send((trace, outcome))
        else {
            return;
        };
        tracing::warn!(
            pod.uid = trace.uid,
            pod.namespace = trace.namespace,
            pod.name = trace.name,
            "Queue of traces is full because the OpenTelemetry collector does not accept them; trace dropped"
        );
        self.counters.traces_dropped(1);
    }
}

// === impl TraceSender ===

impl TraceSender {
    /// Sends until all exporters are dropped and the queue is empty.
    pub async fn run(mut self) {
        let mut batch = Vec::new();
        while self.queue.recv_many(&mut batch, BATCH).await > 0 {
            let count = batch.len() as u64;
            self.in_request = count;
            let spans = batch
                .drain(..)
                .flat_map(|(trace, outcome)| convert::spans(&trace, outcome));
            let resource_spans = convert::resource_spans(&self.node, spans.collect());
            match self.send(resource_spans).await {
                Ok(()) => self.counters.traces_exported(count),
                Err(status) => {
                    tracing::warn!(traces = count, code = ?status.code(), error = status.message(), "Traces cannot be exported; dropped");
                    self.counters.traces_dropped(count);
                }
            }
            self.in_request = 0;
        }
    }

    async fn send(&self, spans: ResourceSpans) -> Result<(), Status> {
        let request = ExportTraceServiceRequest {
            resource_spans: vec![spans],
        };
        let send = || {
            let (mut client, mut request) = (self.client.clone(), Request::new(request.clone()));
            *request.metadata_mut() = self.headers.clone();
            async move {
                let answer = timeout(REQUEST_TIMEOUT, client.export(request)).await;
                answer
                    .unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")))
                    .map(drop)
            }
        };
        let pauses = ExponentialBuilder::default()
            .with_min_delay(Duration::from_secs(1))
            .with_max_times(RETRIES);
        send.retry(pauses).sleep(tokio::time::sleep).when(is_retryable).await
    }
}

impl Drop for TraceSender {
    /// Counts and logs the traces that are not sent.
    fn drop(&mut self) {
        let unsent = self.in_request + self.queue.len() as u64;
        if unsent > 0 {
            tracing::warn!(
                traces = unsent,
                "Traces were not exported before the agent stopped; dropped"
            );
            self.counters.traces_dropped(unsent);
        }
    }
}

/// OTLP specification: which codes a client retries.
fn is_retryable(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
            | Code::ResourceExhausted
    )
}

#[cfg(test)]
mod tests {
    use tokio::{net::TcpListener, task::JoinHandle, time::sleep};

    use super::*;

    /// An exporter whose collector accepts connections and never answers. Its sender waits for the answer to one trace.
    async fn waiting_exporter(counters: &Arc<Counters>) -> (TcpListener, TraceExporter, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let collector = OtlpCollector {
            endpoint: Endpoint::from_shared(address).unwrap(),
            headers: MetadataMap::new(),
        };
        let (exporter, sender) = exporter(collector, "n1", Arc::clone(counters));
        exporter.export(Trace::sample(), Outcome::Finished);
        let sending = tokio::spawn(sender.run());
        sleep(Duration::from_millis(100)).await;
        (listener, exporter, sending)
    }

    #[tokio::test]
    async fn traces_beyond_the_queue_are_dropped_and_counted_without_waiting() {
        let counters = Arc::<Counters>::default();
        let (_listener, exporter, sending) = waiting_exporter(&counters).await;
        // This task never yields: an export that waited would not return.
        for _ in 0..QUEUE + 10 {
            exporter.export(Trace::sample(), Outcome::Finished);
        }
        assert_eq!(counters.counts().traces_dropped, 10);
        sending.abort();
    }

    #[tokio::test]
    async fn traces_that_are_unsent_when_the_sender_stops_are_counted() {
        let counters = Arc::<Counters>::default();
        let (_listener, exporter, sending) = waiting_exporter(&counters).await;
        exporter.export(Trace::sample(), Outcome::Finished);
        sending.abort();
        assert!(sending.await.unwrap_err().is_cancelled());
        assert_eq!(counters.counts().traces_dropped, 2);
    }
}
