//! A socket in front of a runtime's that writes down who asked it to change what, from when to when.
//!
//! Two hands on one pod can only be seen from outside. Each hand is given a recorder of its own; all of them write into one
//! [`Record`] by one clock. Calls pass as they are.

mod calls;
pub mod mounts;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result};
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

/// Whose calls a recorder passes on.
pub type Side = &'static str;

type Body = BoxBody<Bytes, hyper::Error>;

/// A call that changes something, or an attempt at one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Who called.
    pub side: Side,
    /// Such as `StopContainer`.
    pub method: &'static str,
    /// Of which pod, where that is known.
    pub uid: Option<String>,
    /// When it came.
    pub begin: Timestamp,
    /// When it was answered, or given up by who called.
    pub end: Option<Timestamp>,
    /// Whether the runtime said that it is done.
    pub done: bool,
}

/// All that was recorded; cheap to clone, and all clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Record(Arc<Mutex<Written>>);

#[derive(Debug, Default)]
struct Written {
    calls: Vec<Recorded>,
    /// Pods of sandboxes and containers.
    pods: HashMap<String, String>,
}

/// One socket; closed when this is dropped.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    _tasks: JoinSet<()>,
}

/// Notes the end of a call, also of one that is given up.
struct Open {
    record: Record,
    index: usize,
}

// === impl Recorder ===

impl Recorder {
    /// Listens at `path` for this side, in front of the runtime at `runtime`.
    pub fn start(path: PathBuf, runtime: &Path, side: Side, record: &Record) -> Result<Self> {
        let listener = UnixListener::bind(&path).with_context(|| format!("listen at {}", path.display()))?;
        let (runtime, record) = (runtime.to_owned(), record.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (runtime, record) = (runtime.clone(), record.clone());
                connections.spawn(async move {
                    // Whoever hangs up, or is killed, has hung up here as well.
                    serve(stream, &runtime, side, &record).await.ok();
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { path, _tasks: tasks })
    }

    /// The socket as a flag wants it.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.path.display())
    }
}

async fn serve(stream: UnixStream, runtime: &Path, side: Side, record: &Record) -> Result<()> {
    let (sender, driver) = client::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(UnixStream::connect(runtime).await?))
        .await?;
    // With whoever called, what was asked of the runtime is given up.
    let mut tasks = JoinSet::new();
    tasks.spawn(driver);
    let record = record.clone();
    let service = service_fn(move |request| pass(sender.clone(), request, side, record.clone()));
    server::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

/// Asks the runtime the same, and answers the same.
async fn pass(
    mut runtime: client::SendRequest<Full<Bytes>>,
    request: Request<Incoming>,
    side: Side,
    record: Record,
) -> Result<Response<Body>, hyper::Error> {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    // The runtime knows no other name for itself.
    let authority = format!("http://localhost{path}");
    parts.uri = authority.parse::<Uri>().unwrap_or(parts.uri);
    let asked = body.collect().await?.to_bytes();
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
    // A refusal is all in its headers, and ends with them.
    let body = match trailers {
        Some(trailers) => body.with_trailers(std::future::ready(Some(Ok(trailers)))).boxed(),
        None => body.boxed(),
    };
    Ok(Response::from_parts(parts, body))
}

// === impl Record ===

impl Record {
    /// All calls so far that change something, in the order in which they came.
    pub fn calls(&self) -> Vec<Recorded> {
        self.lock().calls.clone()
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

    /// Sandboxes and containers, each with whose it is: lists tell of those whose making was not answered.
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

// === impl Open ===

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
