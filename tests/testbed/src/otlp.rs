//! A collector of OpenTelemetry traces in memory.

#[allow(missing_docs, reason = "documented in the protocol")]
#[allow(dead_code, reason = "only what traces need is used")]
#[allow(clippy::all, clippy::pedantic, reason = "generated")]
mod wire {
    include!(concat!(env!("OUT_DIR"), "/otlp.rs"));
    pub use opentelemetry::proto::collector::trace::v1::*;
}

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use rcgen::CertifiedKey;
use tokio::{net::TcpListener, task::AbortHandle};
use tonic::{
    Request, Response, Status,
    transport::{Identity, Server, ServerTlsConfig, server::TcpIncoming},
};

use wire::{
    ExportTraceServiceRequest, ExportTraceServiceResponse, KeyValue,
    any_value::Value,
    trace_service_server::{TraceService, TraceServiceServer},
};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReceivedSpan {
    /// Attribute `service.name` of the sender.
    pub service: String,
    /// In hexadecimal.
    pub trace_id: String,
    /// In hexadecimal.
    pub span_id: String,
    /// In hexadecimal; empty for a root span.
    pub parent: String,
    pub name: String,
    /// Start, in nanoseconds since the Unix epoch.
    pub start: u64,
    /// End, in nanoseconds since the Unix epoch.
    pub end: u64,
    /// Message of its error status.
    pub error: Option<String>,
    /// Attributes of the span and of its sender.
    pub attributes: BTreeMap<String, String>,
}

/// Receives traces until it is dropped.
#[derive(Debug)]
pub struct OtlpReceiver {
    scheme: &'static str,
    addr: SocketAddr,
    state: Arc<State>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct State {
    spans: Mutex<Vec<ReceivedSpan>>,
    /// Requests that fail with `UNAVAILABLE` first.
    failures: Mutex<usize>,
}

struct Receiver(Arc<State>);

impl OtlpReceiver {
    /// Listens at a free port.
    pub async fn start() -> io::Result<Self> {
        Self::serve("http", Server::builder()).await
    }

    /// As [`Self::start`], with TLS. Returns also its certificate, as PEM.
    pub async fn start_with_tls() -> io::Result<(Self, String)> {
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).map_err(io::Error::other)?;
        let identity = Identity::from_pem(cert.pem(), signing_key.serialize_pem());
        let server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity));
        let receiver = Self::serve("https", server.map_err(io::Error::other)?).await?;
        Ok((receiver, cert.pem()))
    }

    async fn serve(scheme: &'static str, mut server: Server) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let state = Arc::new(State::default());
        let service = TraceServiceServer::new(Receiver(Arc::clone(&state)));
        let server = server.add_service(service);
        let task = tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Ok(Self {
            scheme,
            addr,
            state,
            task: task.abort_handle(),
        })
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("{}://{}", self.scheme, self.addr)
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<ReceivedSpan> {
        self.state.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets this many requests fail.
    pub fn fail(&self, requests: usize) {
        *self.state.failures.lock().unwrap_or_else(PoisonError::into_inner) = requests;
    }
}

impl Drop for OtlpReceiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        {
            let mut failures = self.0.failures.lock().unwrap_or_else(PoisonError::into_inner);
            if *failures > 0 {
                *failures -= 1;
                return Err(Status::unavailable("not now"));
            }
        }
        let mut received = Vec::new();
        for resource_spans in request.into_inner().resource_spans {
            let resource = resource_spans.resource.unwrap_or_default().attributes;
            for span in resource_spans.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                let attributes: BTreeMap<_, _> = resource.iter().chain(&span.attributes).map(attribute).collect();
                received.push(ReceivedSpan {
                    service: attributes.get("service.name").cloned().unwrap_or_default(),
                    trace_id: hex(&span.trace_id),
                    span_id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    name: span.name,
                    start: span.start_time_unix_nano,
                    end: span.end_time_unix_nano,
                    error: span
                        .status
                        .filter(|status| status.code == 2)
                        .map(|status| status.message),
                    attributes,
                });
            }
        }
        let mut spans = self.0.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.append(&mut received);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn attribute(KeyValue { key, value, .. }: &KeyValue) -> (String, String) {
    let text = match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    (key.clone(), text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
