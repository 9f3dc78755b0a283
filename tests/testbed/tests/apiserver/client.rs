//! A client over connections in memory, so that a paused clock governs both ends.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use testbed::apiserver::{Config, MemApiServer};

/// The server and a client.
pub struct Client<'a> {
    server: &'a MemApiServer,
}

/// An answer.
pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

/// A running watch.
pub struct Watch {
    body: Incoming,
    buffer: BytesMut,
}

/// Result of reading a watch.
#[derive(Debug, PartialEq)]
pub enum Line {
    /// Type, name and version of an event.
    Event(String, Value),
    /// The stream ended normally.
    End,
    /// The connection broke.
    Broken,
    /// No event in time.
    Silence,
}

pub async fn server() -> MemApiServer {
    let nodes = vec!["n1".to_owned(), "n2".to_owned()];
    MemApiServer::start(Config {
        nodes,
        ..Config::default()
    })
    .await
    .unwrap()
}

impl<'a> Client<'a> {
    pub fn admin(server: &'a MemApiServer) -> Self {
        Client { server }
    }

    /// `None` if the connection was closed without an answer.
    pub async fn try_ask(&self, method: Method, path: &str, media: &str, body: &Value) -> Option<Answer> {
        Self::read(self.send(method, path, media, body, "application/json").await?).await
    }

    async fn read(response: http::Response<Incoming>) -> Option<Answer> {
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Some(Answer {
            code: head.status.as_u16(),
            headers: head.headers,
            body,
        })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        media: &str,
        body: &Value,
        accept: &str,
    ) -> Option<http::Response<Incoming>> {
        let stream = TokioIo::new(self.server.connector().connect());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let body = if body.is_null() {
            Bytes::new()
        } else {
            body.to_string().into()
        };
        let request = Request::builder().method(method).uri(path).header("host", "test");
        let request = request.header("authorization", "Bearer admin");
        let request = request.header("accept", accept).header("content-type", media);
        sender.send_request(request.body(Full::new(body)).unwrap()).await.ok()
    }

    async fn ask(&self, method: Method, path: &str, body: &Value) -> Answer {
        self.try_ask(method, path, "application/json", body)
            .await
            .expect("an answer")
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, &Value::Null).await
    }

    /// GET in another form than plain JSON.
    pub async fn get_as(&self, path: &str, accept: &str) -> Answer {
        let response = self.send(Method::GET, path, "", &Value::Null, accept).await;
        Self::read(response.expect("an answer")).await.expect("an answer")
    }

    pub async fn create(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::POST, path, &body).await
    }

    pub async fn watch(&self, path: &str) -> Watch {
        let response = self
            .send(Method::GET, path, "", &Value::Null, "application/json")
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
        Watch {
            body: response.into_body(),
            buffer: BytesMut::new(),
        }
    }
}

impl Watch {
    pub async fn next(&mut self) -> Line {
        self.next_within(Duration::from_secs(1)).await
    }

    pub async fn next_within(&mut self, patience: Duration) -> Line {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Value = serde_json::from_slice(&self.buffer.split_to(end + 1)).unwrap();
                return Line::Event(line["type"].as_str().unwrap().to_owned(), line["object"].clone());
            }
            match tokio::time::timeout(patience, self.body.frame()).await {
                Err(_) => return Line::Silence,
                Ok(None) => return Line::End,
                Ok(Some(Err(_))) => return Line::Broken,
                Ok(Some(Ok(frame))) => self.buffer.extend_from_slice(&frame.into_data().unwrap()),
            }
        }
    }

    /// The next event, which must exist.
    pub async fn event(&mut self) -> (String, Value) {
        match self.next().await {
            Line::Event(change, object) => (change, object),
            other => panic!("no event but {other:?}"),
        }
    }
}
