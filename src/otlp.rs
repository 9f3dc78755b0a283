//! Exports traces of terminated pods to an OpenTelemetry collector (OTLP over gRPC).
//!
//! `worker → queue → convert → send`

mod convert;

use std::{sync::Arc, time::Duration};

use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::{error::OTelSdkError, trace::SpanExporter as _};
use tokio::{sync::mpsc, time::timeout};

use crate::{counters::Counters, model::trace::Trace};

pub use convert::Outcome;

/// Traces that wait for the collector. More are dropped.
const QUEUE: usize = 256;
/// Traces in one request.
const BATCH: usize = 64;
/// Longest export of a batch, with connection and retries.
const MAX_EXPORT: Duration = Duration::from_secs(60);

/// Takes traces of pods. Cheap to clone; never waits.
#[derive(Debug, Clone)]
pub struct TraceExporter {
    queue: mpsc::Sender<(Trace, Outcome)>,
    counters: Arc<Counters>,
}

/// Sends queued traces.
pub struct TraceSender {
    queue: mpsc::Receiver<(Trace, Outcome)>,
    collector: SpanExporter,
    counters: Arc<Counters>,
    /// Traces of the request in progress.
    in_request: u64,
}

/// A queue for this collector, and its sender. The collector connects at its first request.
pub fn exporter(mut collector: SpanExporter, node: &str, counters: Arc<Counters>) -> (TraceExporter, TraceSender) {
    let (sender, queue) = mpsc::channel(QUEUE);
    let exporter = TraceExporter {
        queue: sender,
        counters: Arc::clone(&counters),
    };
    collector.set_resource(&convert::resource(node));
    let sender = TraceSender {
        queue,
        collector,
        counters,
        in_request: 0,
    };
    (exporter, sender)
}

// === impl TraceExporter ===

impl TraceExporter {
    /// Queues a trace. It is dropped, counted and logged if the queue is full.
    pub fn export(&self, trace: Trace, outcome: Outcome) {
        let Err(unsent) = self.queue.try_send((trace, outcome)) else {
            return;
        };
        let (trace, _) = unsent.into_inner();
        tracing::warn!(
            pod.uid = trace.uid,
            pod.namespace = trace.namespace,
            pod.name = trace.name,
            "Queue of traces is full because the OpenTelemetry collector does not accept them; trace dropped"
        );
        self.counters.count(|counts| counts.traces_dropped += 1);
    }
}

// === impl TraceSender ===

impl TraceSender {
    /// Sends until all exporters are dropped and the queue is empty. A request that fails is repeated for a while.
    pub async fn run(mut self) {
        let mut batch = Vec::new();
        while self.queue.recv_many(&mut batch, BATCH).await > 0 {
            let count = batch.len() as u64;
            self.in_request = count;
            let spans = batch
                .drain(..)
                .flat_map(|(trace, outcome)| convert::spans(&trace, outcome));
            // Its own limit does not count the connection.
            let exported = timeout(MAX_EXPORT, self.collector.export(spans.collect())).await;
            match exported.unwrap_or(Err(OTelSdkError::Timeout(MAX_EXPORT))) {
                Ok(()) => self.counters.count(|all| all.traces_exported += count),
                Err(error) => {
                    tracing::warn!(traces = count, %error, "Traces cannot be exported; dropped");
                    self.counters.count(|all| all.traces_dropped += count);
                }
            }
            self.in_request = 0;
        }
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
            self.counters.count(|counts| counts.traces_dropped += unsent);
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_otlp::WithExportConfig as _;
    use tokio::{net::TcpListener, task::JoinHandle, time::sleep};

    use super::*;

    /// An exporter whose collector accepts connections and never answers. Its sender waits for the answer to one trace.
    async fn waiting_exporter(counters: &Arc<Counters>) -> (TcpListener, TraceExporter, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let collector = SpanExporter::builder().with_tonic().with_endpoint(address);
        let collector = collector.build().unwrap();
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
