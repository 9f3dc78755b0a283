//! The other end of the admin socket.

use std::{io, path::Path, time::Duration};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::{net::UnixStream, time::timeout};

/// The agent answers from memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum AskError {
    /// Nobody listens there.
    #[error("no agent answers at {path}: {cause}; is it running, and is --socket the one it was started with?")]
    NoAgent {
        /// The socket.
        path: String,
        /// What the kernel says.
        cause: io::Error,
    },
    /// The agent has no answer to this.
    #[error("{0}")]
    Refused(String),
    /// The agent listens and does not answer, or not what it should.
    #[error("the agent at {path} gives no proper answer: {cause}")]
    Broken {
        /// The socket.
        path: String,
        /// What is wrong.
        cause: String,
    },
}

/// Asks the agent at `socket` for `path`.
pub async fn ask<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, AskError> {
    let stream = UnixStream::connect(socket).await.map_err(|cause| AskError::NoAgent {
        path: socket.display().to_string(),
        cause,
    })?;
    let broken = |cause: String| AskError::Broken {
        path: socket.display().to_string(),
        cause,
    };
    let answer = timeout(PATIENCE, exchange(stream, path)).await;
    let (code, body) = answer
        .map_err(|_| broken(format!("nothing within {PATIENCE:?}")))?
        .map_err(|error| broken(error.to_string()))?;
    if code != 200 {
        let error = serde_json::from_slice::<serde_json::Value>(&body).ok();
        let message = error.and_then(|error| Some(error["error"].as_str()?.to_owned()));
        return Err(AskError::Refused(
            message.unwrap_or_else(|| format!("HTTP status {code}")),
        ));
    }
    serde_json::from_slice(&body).map_err(|error| broken(error.to_string()))
}

async fn exchange(stream: UnixStream, path: &str) -> Result<(u16, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get(path)
        .header(http::header::HOST, "pod-teardown")
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let code = response.status().as_u16();
    Ok((code, response.into_body().collect().await?.to_bytes()))
}
