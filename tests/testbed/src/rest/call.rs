//! One request.

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use serde_json::Value;

use super::{Answer, Client, Error, Result, Watch};

/// Type of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patch {
    /// RFC 6902: a list of operations.
    Json,
    /// RFC 7386: null removes, lists are replaced.
    Merge,
    /// Kubernetes' strategic merge: lists are merged by the kind's keys.
    Strategic,
}

/// A request that is being filled in.
#[derive(Debug)]
pub struct Call<'c> {
    client: &'c Client,
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    headers: HeaderMap,
    body: Option<Vec<u8>>,
}

impl Patch {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
        }
    }
}

impl<'c> Call<'c> {
    pub(super) fn new(client: &'c Client, method: Method, path: &str) -> Self {
        Self {
            client,
            method,
            path: path.to_owned(),
            query: Vec::new(),
            headers: HeaderMap::new(),
            body: None,
        }
    }

    /// Adds query parameters.
    #[must_use]
    pub fn options(mut self, options: &[(&str, &str)]) -> Self {
        self.query
            .extend(options.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())));
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: &str) -> Self {
        // What is no header is left out, which the server's answer shows.
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }

    #[must_use]
    pub fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string().into_bytes())
    }

    /// A patch as the body.
    #[must_use]
    pub fn patch(self, kind: Patch, patch: &Value) -> Self {
        self.body(kind.content_type(), patch.to_string().into_bytes())
    }

    /// A body of any kind.
    #[must_use]
    pub fn body(mut self, content_type: &str, body: Vec<u8>) -> Self {
        self.body = Some(body);
        self.header(header::CONTENT_TYPE, content_type)
    }

    /// Sends it and reads the whole answer.
    pub async fn send(self) -> Result<Answer> {
        let request = self.name();
        let response = self.response().await?;
        read(request, response).await
    }

    /// Sends it and reads the answer event by event.
    pub async fn stream(self) -> Result<Watch> {
        let request = self.name();
        let response = self.response().await?;
        if response.status().is_success() {
            return Ok(Watch::new(request, response));
        }
        let answer = Box::new(read(request.clone(), response).await?);
        Err(Error::Refused { request, answer })
    }

    fn name(&self) -> String {
        let query: Vec<_> = self.query.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{} {}{mark}{}", self.method, self.path, query.join("&"))
    }

    async fn response(self) -> Result<reqwest::Response> {
        let name = self.name();
        let setup = |e: &dyn std::fmt::Display| Error::Setup {
            url: self.client.base.to_string(),
            reason: e.to_string(),
        };
        let mut url = self.client.base.join(&self.path).map_err(|e| setup(&e))?;
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query);
        }
        let mut request = self.client.http.request(self.method, url).headers(self.headers);
        if let Some(token) = &self.client.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = self.body {
            request = request.body(body);
        }
        request
            .send()
            .await
            .map_err(|source| Error::Transport { request: name, source })
    }
}

async fn read(request: String, response: reqwest::Response) -> Result<Answer> {
    let status = response.status();
    let headers = response.headers().clone();
    let bytes = response.bytes().await.map_err(|source| Error::Transport {
        request: request.clone(),
        source,
    })?;
    let is_json = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with("application/json"));
    let body = if is_json {
        serde_json::from_slice(&bytes).map_err(|source| Error::Json {
            request: request.clone(),
            source,
        })?
    } else {
        Value::String(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Answer {
        status,
        headers,
        body,
        bytes,
        request,
    })
}
