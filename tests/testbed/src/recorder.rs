//! A proxy in front of a runtime's socket that records who made which changing call, and when.
//!
//! Only an outside observer can see two actors on one pod. Each actor has its own recorder; all of them write into one
//! [`Record`] with one clock. Calls are forwarded unchanged.

mod calls;
pub mod mounts;

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{body::Incoming, client::conn::http2 as client, server::conn::http2 as server, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::Timestamp;
use tokio::{
    net::{UnixListener, UnixStream},
    task::JoinSet,
};

use calls::Call;

/// Name of the client behind a recorder.
pub type Side = &'static str;

type Body = BoxBody<Bytes, hyper::Error>;

/// A changing call, successful or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The client.
    pub side: Side,
    /// Such as `StopContainer`.
    pub method: &'static str,
    /// Its pod, if known.
    pub uid: Option<String>,
    /// When it arrived.
    pub begin: Timestamp,
    /// When it was answered or canceled.
    pub end: Option<Timestamp>,
    /// Whether it succeeded.
    pub done: bool,
}

/// All recorded calls; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Record(Arc<Mutex<Written>>);

#[derive(Debug, Default)]
struct Written {
    calls: Vec<Recorded>,
    /// All methods of a client, also those that only read.
    methods: BTreeSet<(Side, String)>,
    /// Pods of sandboxes and containers.
    pods: HashMap<String, String>,
}

/// Checks that all of a client's methods only read, and that these are among them.
pub fn expect_reads(methods: &[String], some: &[&str]) -> Result<()> {
    let is_read = |method: &String| {
        method.starts_with("List")
            || method.starts_with("Stream")
            || method.ends_with("Status")
            || ["Version", "RuntimeConfig", "GetContainerEvents"].contains(&&**method)
    };
    ensure!(methods.iter().all(is_read), "{methods:?}");
    let missing = some
        .iter()
        .find(|wanted| methods.iter().all(|method| method != **wanted));
    ensure!(missing.is_none(), "no {missing:?}: {methods:?}");
    Ok(())
}

/// One socket; closed when this is dropped.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    _tasks: JoinSet<()>,
}

/// Records the end of a call, even if it is canceled.
struct Open {
    record: Record,
    index: usize,
}

impl Recorder {
    /// Listens at `path` for this client, in front of the runtime at `runtime`.
    pub fn start(path: PathBuf, runtime: &Path, side: Side, record: &Record) -> Result<Self> {
        let listener = UnixListener::bind(&path).with_context(|| format!("listen at {}", path.display()))?;
        let (runtime, record) = (runtime.to_owned(), record.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (runtime, record) = (runtime.clone(), record.clone());
                connections.spawn(async move {
                    // If the client closes the connection, the connection to the runtime is closed as well.
                    serve(stream, &runtime, side, &record).await.ok();
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { path, _tasks: tasks })
    }

    /// The socket as a flag.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.path.display())
    }
}

async fn serve(stream: UnixStream, runtime: &Path, side: Side, record: &Record) -> Result<()> {
    let (sender, driver) = client::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(UnixStream::connect(runtime).await?))
        .await?;
    // If the client is gone, its call to the runtime is canceled.
    let mut tasks = JoinSet::new();
    tasks.spawn(driver);
    let record = record.clone();
    let service = service_fn(move |request| pass(sender.clone(), request, side, record.clone()));
    server::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

/// Forwards the request and its answer.
async fn pass(
    mut runtime: client::SendRequest<Full<Bytes>>,
    request: Request<Incoming>,
    side: Side,
    record: Record,
) -> Result<Response<Body>, hyper::Error> {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    // The authority that the runtime expects.
    let authority = format!("http://localhost{path}");
    parts.uri = authority.parse::<Uri>().unwrap_or(parts.uri);
    let asked = body.collect().await?.to_bytes();
    record.note(side, &path);
    let call = calls::read(&path, &asked);
    let open = call.as_ref().map(|call| record.open(side, call));
    let answer = runtime
        .send_request(Request::from_parts(parts, Full::new(asked)))
        .await?;
    if call.is_none() && !calls::is_list(&path) {
        return Ok(answer.map(BodyExt::boxed));
    }
    let (parts, body) = answer.into_parts();
    let body = body.collect().await?;
    let trailers = body.trailers().cloned();
    let bytes = body.to_bytes();
    let status = trailers.as_ref().and_then(|trailers| trailers.get("grpc-status"));
    let done = status
        .or_else(|| parts.headers.get("grpc-status"))
        .is_some_and(|code| code == "0");
    match (call, open) {
        (Some(call), Some(open)) => open.close(&call, &bytes, done),
        _ => record.learn(calls::listed(&path, &bytes)),
    }
    let body = Full::new(bytes).map_err(|never| match never {});
    // An error is in the headers only.
    let body = match trailers {
        Some(trailers) => body.with_trailers(std::future::ready(Some(Ok(trailers)))).boxed(),
        None => body.boxed(),
    };
    Ok(Response::from_parts(parts, body))
}

impl Record {
    /// All changing calls so far, in order of arrival.
    pub fn calls(&self) -> Vec<Recorded> {
        self.lock().calls.clone()
    }

    /// Methods that this client has called, also those that only read.
    pub fn methods(&self, side: Side) -> Vec<String> {
        let written = self.lock();
        let methods = written.methods.iter().filter(|(of, _)| *of == side);
        methods.map(|(_, method)| method.clone()).collect()
    }

    fn note(&self, side: Side, path: &str) {
        let method = path.rsplit('/').next().unwrap_or_default();
        self.lock().methods.insert((side, method.to_owned()));
    }

    fn open(&self, side: Side, call: &Call) -> Open {
        let mut written = self.lock();
        let uid = match &call.pod {
            calls::Pod::Uid(uid) => Some(uid.clone()),
            calls::Pod::Of(id) => written.pods.get(id).cloned(),
        };
        written.calls.push(Recorded {
            side,
            method: call.method,
            uid,
            begin: Timestamp::now(),
            end: None,
            done: false,
        });
        Open {
            record: self.clone(),
            index: written.calls.len() - 1,
        }
    }

    /// Sandboxes and containers with their pods, from lists: their creation may not have been answered.
    fn learn(&self, listed: Vec<(String, calls::Pod)>) {
        let mut written = self.lock();
        for (id, pod) in listed {
            let uid = match pod {
                calls::Pod::Uid(uid) => Some(uid),
                calls::Pod::Of(id) => written.pods.get(&id).cloned(),
            };
            if let Some(uid) = uid {
                written.pods.insert(id, uid);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn close(self, call: &Call, answer: &[u8], done: bool) {
        let mut written = self.record.lock();
        written.calls[self.index].done = done;
        let uid = written.calls[self.index].uid.clone();
        if let (Some(id), Some(uid)) = (calls::made(call, answer), uid) {
            written.pods.insert(id, uid);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.record.lock().calls[self.index].end = Some(Timestamp::now());
    }
}
