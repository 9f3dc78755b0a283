//! The other end of the admin socket.

use std::{error::Error, io, path::Path, time::Duration};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{net::UnixStream, time::timeout};

use crate::model::foreign;

/// The agent answers from memory.
const PATIENCE: Duration = Duration::from_secs(5);
/// And then waits for the disk, if it is asked to do something.
const LONG_PATIENCE: Duration = Duration::from_secs(15);

/// What to do where nobody could be asked.
fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => "only root may ask it: run this as root",
        _ => "is it running, and is --socket the one it was started with?",
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens there.
    #[error("no agent answers at {path}: {cause}; {}", remedy(cause))]
    NoAgent {
        /// The socket.
        path: String,
        /// What the kernel says.
        cause: io::Error,
    },
    /// The agent has no answer to this.
    #[error("{0}")]
    Refused(String),
    /// It went while it was asked.
    #[error(
        "the agent at {path} has gone before it answered: {cause}; what became of it is told by pod-teardown status when it \
        runs again"
    )]
    Disconnected {
        /// The socket.
        path: String,
        /// How that was noticed.
        cause: String,
    },
    /// It went while somebody waited for the end of a pod.
    #[error(
        "the agent has gone while {pod} was being ended: {cause}; what is left of that goes on when the agent starts again: \
        see pod-teardown status and pod-teardown timeline {pod} then"
    )]
    AgentExited {
        /// By name.
        pod: String,
        /// How that was noticed.
        cause: String,
    },
    /// The agent listens and does not answer, or not what it should.
    #[error("the agent at {path} gives no proper answer: {cause}")]
    InvalidAnswer {
        /// The socket.
        path: String,
        /// What is wrong.
        cause: String,
    },
}

/// Asks the agent at `socket` for `path`. As with all answers here, its texts can be shown on a terminal.
pub async fn get<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, ClientError> {
    exchanged(socket, Method::GET, path, Bytes::new(), PATIENCE).await
}

/// The same with its texts unchanged, for JSON.
pub async fn get_unescaped<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, ClientError> {
    let body = body_of(socket, Method::GET, path, Bytes::new(), PATIENCE).await?;
    serde_json::from_slice(&body).map_err(|error| broken(socket, error.to_string()))
}

/// The same where the agent may let its answer wait for so long.
pub async fn get_with_timeout<T: DeserializeOwned>(
    socket: &Path,
    path: &str,
    wait: Duration,
) -> Result<T, ClientError> {
    exchanged(socket, Method::GET, path, Bytes::new(), wait + PATIENCE).await
}

/// Asks the agent at `socket` to do something for which it may take so long.
pub async fn post_with_timeout<T: DeserializeOwned>(
    socket: &Path,
    path: &str,
    what: &impl Serialize,
    time: Duration,
) -> Result<T, ClientError> {
    let body = serde_json::to_vec(what).unwrap_or_default();
    exchanged(socket, Method::POST, path, body.into(), time.saturating_add(PATIENCE)).await
}

/// Asks the agent at `socket` to do something.
pub async fn post<T: DeserializeOwned>(socket: &Path, path: &str, what: &impl Serialize) -> Result<T, ClientError> {
    let body = serde_json::to_vec(what).unwrap_or_default();
    exchanged(socket, Method::POST, path, body.into(), LONG_PATIENCE).await
}

async fn exchanged<T: DeserializeOwned>(
    socket: &Path,
    method: Method,
    path: &str,
    body: Bytes,
    patience: Duration,
) -> Result<T, ClientError> {
    let body = body_of(socket, method, path, body, patience).await?;
    let answer = serde_json::from_slice::<Value>(&body).map(foreign::escape_value);
    let answer = answer.and_then(serde_json::from_value);
    answer.map_err(|error| broken(socket, error.to_string()))
}

fn broken(socket: &Path, cause: String) -> ClientError {
    ClientError::InvalidAnswer {
        path: socket.display().to_string(),
        cause,
    }
}

async fn body_of(
    socket: &Path,
    method: Method,
    path: &str,
    body: Bytes,
    patience: Duration,
) -> Result<Bytes, ClientError> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|cause| ClientError::NoAgent {
            path: socket.display().to_string(),
            cause,
        })?;
    let broken = |cause| broken(socket, cause);
    let cut = |cause: String| ClientError::Disconnected {
        path: socket.display().to_string(),
        cause,
    };
    let answer = timeout(patience, exchange(stream, method, path, body)).await;
    let (code, body) = match answer {
        Err(_) => return Err(broken(format!("nothing within {patience:?}"))),
        Ok(Err(error)) if has_gone(&*error) => return Err(cut(error.to_string())),
        Ok(answer) => answer.map_err(|error| broken(error.to_string()))?,
    };
    if code != 200 {
        let error = serde_json::from_slice::<Value>(&body).ok();
        let message = error.and_then(|error| Some(error["error"].as_str()?.to_owned()));
        return Err(ClientError::Refused(
            message.unwrap_or_else(|| format!("HTTP status {code}")),
        ));
    }
    Ok(body)
}

/// Whether the connection ended before there was an answer, as that of a process that has ended.
fn has_gone(error: &(dyn Error + Send + Sync + 'static)) -> bool {
    let Some(error) = error.downcast_ref::<hyper::Error>() else {
        return false;
    };
    let of_io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    error.is_incomplete_message()
        || error.is_closed()
        || error.is_canceled()
        || of_io
            .is_some_and(|error| [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe].contains(&error.kind()))
}

async fn exchange(
    stream: UnixStream,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<(u16, Bytes), Box<dyn Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::HOST, "pod-teardown")
        .body(Full::new(body))?;
    let response = sender.send_request(request).await?;
    let code = response.status().as_u16();
    Ok((code, response.into_body().collect().await?.to_bytes()))
}
