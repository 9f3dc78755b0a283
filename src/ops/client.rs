//! The client of the admin socket.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::Value;
use tokio::{net::UnixStream, time::timeout};

use crate::{model::foreign, words::io_error};

/// Timeout of queries, which the agent answers from memory.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a command may take: the agent answers it after a write to disk.
const COMMAND_TIME: Duration = Duration::from_secs(10);

/// The remedy if the socket cannot be used.
fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => "run this command as root",
        _ => "is the agent running, and with the same --socket?",
    }
}

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No agent listens on the socket.
    #[error("no agent answers at {path}: {}; {}", io_error(cause), remedy(cause))]
    NoAgent {
        /// The socket.
        path: String,
        /// The error of connect(2).
        cause: io::Error,
    },
    /// The agent has refused the request.
    #[error("{0}")]
    Refused(String),
    /// The agent knows nothing of what was asked for.
    #[error("{0}")]
    Unknown(String),
    /// The agent has closed the connection before its answer.
    #[error("the agent at {path} has exited before its answer: {cause}; see pod-teardown status once it runs again")]
    Disconnected {
        /// The socket.
        path: String,
        /// The error of the connection.
        cause: String,
    },
    /// The agent gives no valid answer, or the request was not completed.
    #[error("{0}")]
    Failed(String),
}

/// An answer of the agent.
#[derive(Debug)]
pub struct RawAnswer {
    socket: PathBuf,
    body: Bytes,
}

/// Sends a query. Control characters in the answer are escaped for a terminal.
///
/// # Errors
/// See [`ClientError`]; this applies to all functions here.
pub async fn get<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, ClientError> {
    get_raw(socket, path, Duration::ZERO).await?.parse()
}

/// Sends a query that the agent may answer after `wait`, and returns the answer as it is.
pub async fn get_raw(socket: &Path, path: &str, wait: Duration) -> Result<RawAnswer, ClientError> {
    fetch(socket, Method::GET, path, Bytes::new(), wait + QUERY_TIMEOUT).await
}

/// Sends a command that may take `time`.
pub async fn post_with_timeout<T: DeserializeOwned>(
    socket: &Path,
    path: &str,
    command: &impl Serialize,
    time: Duration,
) -> Result<T, ClientError> {
    let body = serde_json::to_vec(command).unwrap_or_default();
    let limit = time.saturating_add(QUERY_TIMEOUT);
    let answer = fetch(socket, Method::POST, path, body.into(), limit).await?;
    answer.parse()
}

/// Sends a command.
pub async fn post<T: DeserializeOwned>(socket: &Path, path: &str, command: &impl Serialize) -> Result<T, ClientError> {
    post_with_timeout(socket, path, command, COMMAND_TIME).await
}

// === impl RawAnswer ===

impl RawAnswer {
    /// Parses the answer. Control characters are escaped for a terminal.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        let answer = serde_json::from_slice::<Value>(&self.body).map(foreign::escape_value);
        let answer = answer.and_then(serde_json::from_value);
        answer.map_err(|error| unknown_answer(&self.socket, &error))
    }

    /// The answer unchanged, apart from escapes: the agent sends it with indents.
    pub fn json(&self) -> Result<String, ClientError> {
        let answer = serde_json::from_slice::<IgnoredAny>(&self.body);
        answer.map_err(|error| unknown_answer(&self.socket, &error))?;
        Ok(foreign::escape_json(String::from_utf8_lossy(&self.body).into_owned()))
    }
}

/// The error for an answer that is no JSON, or that an agent of another version has sent.
fn unknown_answer(socket: &Path, error: &serde_json::Error) -> ClientError {
    let remedy = if error.is_data() {
        "; the agent may have another version than this program: restart it"
    } else {
        ""
    };
    invalid_answer(socket, &format!("{error}{remedy}"))
}

fn invalid_answer(socket: &Path, cause: &str) -> ClientError {
    ClientError::Failed(format!(
        "the agent at {} gives no valid answer: {cause}",
        socket.display()
    ))
}

async fn fetch(
    socket: &Path,
    method: Method,
    path: &str,
    body: Bytes,
    limit: Duration,
) -> Result<RawAnswer, ClientError> {
    let shown = || socket.display().to_string();
    let stream = UnixStream::connect(socket).await;
    let stream = stream.map_err(|cause| ClientError::NoAgent { path: shown(), cause })?;
    let answer = timeout(limit, exchange(stream, method, path, body)).await;
    let (code, body) = match answer {
        Err(_) => return Err(invalid_answer(socket, &format!("nothing within {limit:?}"))),
        Ok(Err(error)) if is_disconnect(&*error) => {
            let (path, cause) = (shown(), error.to_string());
            return Err(ClientError::Disconnected { path, cause });
        }
        Ok(answer) => answer.map_err(|error| invalid_answer(socket, &error.to_string()))?,
    };
    if code != 200 {
        let error = serde_json::from_slice::<Value>(&body).ok();
        let message = error.and_then(|error| Some(error["error"].as_str()?.to_owned()));
        let message = message.unwrap_or_else(|| format!("HTTP status {code}"));
        return Err(match code {
            404 => ClientError::Unknown(message),
            _ => ClientError::Refused(message),
        });
    }
    let socket = socket.to_owned();
    Ok(RawAnswer { socket, body })
}

/// Whether the connection was closed before the answer, as by an exit of the agent.
fn is_disconnect(error: &(dyn Error + Send + Sync + 'static)) -> bool {
    let Some(error) = error.downcast_ref::<hyper::Error>() else {
        return false;
    };
    let io_error = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    error.is_incomplete_message()
        || error.is_closed()
        || error.is_canceled()
        || io_error
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
