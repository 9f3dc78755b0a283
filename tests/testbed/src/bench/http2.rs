//! A cheap client: HTTP/2 over a few persistent connections, bytes in and out.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{
    Method, Request,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use prost::Message;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};

use crate::{api::Access, proto::ListMeta};

pub const JSON: &str = "application/json";
/// Protobuf, or JSON if the server lacks protobuf for a type.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf,application/json";
const METADATA_LIST: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const MAGIC: &[u8] = b"k8s\0";

/// Connections to one server under one identity.
#[derive(Debug)]
pub struct Http2 {
    connections: Vec<Client<HttpsConnector<HttpConnector>, Full<Bytes>>>,
    next: AtomicUsize,
    url: String,
    authorization: String,
}

/// A page of metadata. Objects are counted and not decoded.
#[derive(Clone, PartialEq, Message)]
pub struct Page {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub items: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

impl Http2 {
    pub fn new(access: &Access, connections: usize) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        if let Some(ca) = &access.ca {
            roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).context("read the CA")?)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http2()
            .build();
        // Each client keeps one connection.
        let client = || {
            Client::builder(TokioExecutor::new())
                .http2_only(true)
                .build(connector.clone())
        };
        Ok(Self {
            connections: (0..connections).map(|_| client()).collect(),
            next: AtomicUsize::new(0),
            url: access.url.clone(),
            authorization: format!("Bearer {}", access.token),
        })
    }

    /// Sends a request with a JSON body, or none; returns the body of a successful answer. Connections are used in turn.
    pub async fn send(&self, method: Method, path: &str, accept: &str, body: impl Into<Bytes>) -> Result<Bytes> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(ACCEPT, accept)
            .header(AUTHORIZATION, &self.authorization)
            .header(CONTENT_TYPE, JSON)
            .body(Full::new(body.into()))?;
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        let response = self.connections[turn]
            .request(request)
            .await
            .with_context(|| format!("request {path}"))?;
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .await
            .context("no complete answer")?
            .to_bytes();
        if !status.is_success() {
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(body)
    }

    /// A page of a collection; `path` has its query.
    pub async fn page(&self, path: &str) -> Result<Page> {
        let mut bytes = self.send(Method::GET, path, METADATA_LIST, Bytes::new()).await?;
        anyhow::ensure!(bytes.starts_with(MAGIC), "{path}: no protobuf of Kubernetes");
        let envelope = Envelope::decode(bytes.split_off(MAGIC.len()))?;
        Ok(Page::decode(envelope.raw)?)
    }
}

impl Page {
    /// The `continue` token, if there is a next page.
    pub fn next(&self) -> Option<&str> {
        let next = self.metadata.as_ref()?.r#continue.as_deref()?;
        (!next.is_empty()).then_some(next)
    }

    /// Number of objects from this page on.
    pub fn left(&self) -> u32 {
        let after = self.metadata.as_ref().map_or(0, ListMeta::remaining_item_count);
        u32::try_from(after).unwrap_or(0) + u32::try_from(self.items.len()).unwrap_or(u32::MAX)
    }
}
