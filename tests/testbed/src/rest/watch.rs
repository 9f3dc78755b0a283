//! A watch: one JSON object per line, or a sequence of protobuf messages, until the server ends it.

use bytes::BytesMut;
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::Value;

use super::{Error, Result};
use crate::proto;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum EventType {
    /// It is new to this watch.
    Added,
    /// It changed.
    Modified,
    /// It is deleted, or no longer selected.
    Deleted,
    Bookmark,
    /// The watch has ended; the object is a Status.
    Error,
}

/// One event of a watch.
#[derive(Debug, Clone, Deserialize)]
pub struct Event {
    /// What happened.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// The object, or the Status of an error.
    pub object: Value,
}

/// A watch in progress.
#[derive(Debug)]
pub struct Watch {
    request: String,
    response: reqwest::Response,
    buffer: BytesMut,
}

impl Event {
    /// The object's resourceVersion.
    pub fn rv(&self) -> &str {
        self.object["metadata"]["resourceVersion"].as_str().unwrap_or_default()
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }
}

impl Watch {
    pub(super) fn new(request: String, response: reqwest::Response) -> Self {
        Self {
            request,
            response,
            buffer: BytesMut::new(),
        }
    }

    /// The next event, or none when the server has ended the watch.
    ///
    /// Nothing is lost when the future is dropped before it is ready.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                let event = serde_json::from_slice(&line).map_err(|source| Error::Json {
                    request: self.request.clone(),
                    source,
                })?;
                return Ok(Some(event));
            }
            if !self.more().await? {
                return Ok(None);
            }
        }
    }

    /// The next event of a watch in protobuf: its type and its object, which is a message of its own.
    pub async fn next_message(&mut self) -> Result<Option<(String, Vec<u8>)>> {
        loop {
            let event = proto::next_frame(&mut self.buffer).map_err(|source| Error::Protobuf {
                request: self.request.clone(),
                source,
            })?;
            if event.is_some() {
                return Ok(event);
            }
            if !self.more().await? {
                return Ok(None);
            }
        }
    }

    pub fn content_type(&self) -> &str {
        let value = self.response.headers().get(CONTENT_TYPE);
        value.and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Waits for more of the stream; false at its end.
    async fn more(&mut self) -> Result<bool> {
        let chunk = self.response.chunk().await.map_err(|source| Error::Transport {
            request: self.request.clone(),
            source,
        })?;
        if let Some(chunk) = &chunk {
            self.buffer.extend_from_slice(chunk);
        }
        Ok(chunk.is_some())
    }
}
