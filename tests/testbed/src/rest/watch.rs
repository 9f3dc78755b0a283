//! A watch: one JSON object per line, until the server has had enough.

use bytes::BytesMut;
use futures::{Stream, stream};
use serde::Deserialize;
use serde_json::Value;

use super::{Error, Result};

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum EventType {
    /// It is new to this watch.
    Added,
    /// It changed.
    Modified,
    /// It is gone, or no longer selected.
    Deleted,
    /// Nothing happened up to this resourceVersion.
    Bookmark,
    /// The watch is over; the object is a Status.
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

// === impl Event ===

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

// === impl Watch ===

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
            let chunk = self.response.chunk().await;
            match chunk.map_err(|source| Error::Transport {
                request: self.request.clone(),
                source,
            })? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }

    /// The same as a stream that ends with the watch.
    pub fn into_stream(self) -> impl Stream<Item = Result<Event>> {
        stream::try_unfold(self, |mut watch| async move {
            Ok(watch.next().await?.map(|event| (event, watch)))
        })
    }
}
