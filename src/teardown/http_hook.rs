//! `httpGet` of a preStop hook, like the kubelet's: certificates are not verified, any response is success.

use std::{
    error::Error,
    io,
    sync::{Arc, OnceLock},
};

use crate::{
    model::{
        foreign::ForeignText,
        pod::{ContainerView, HookPort, HttpGet},
    },
    node::effects::{Effects, EffectsBlocked},
};
use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Maximum number of redirects, all to the same host name.
const MAX_REDIRECTS: usize = 10;
/// User agent of kubelet 1.37.
const USER_AGENT: &str = "kube-lifecycle/1.37";

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub enum HttpHookError {
    /// The pod has no address, and the handler has no host.
    #[error("httpGet: the pod has no IP and the handler names no host")]
    NoAddress,
    /// The port is neither the name of a container port nor a valid number.
    #[error("httpGet: port {0} is neither the name of a port of the container nor a number from 1 to 65535")]
    BadPort(String),
    /// Host, port and path are not a valid URL.
    #[error("httpGet: {0:?} is no URL")]
    BadUrl(String),
    /// There was no response.
    #[error("httpGet: {0}")]
    NoAnswer(String),
    /// The gate closed before the request or its response.
    #[error(transparent)]
    Blocked(#[from] EffectsBlocked),
}

/// Address of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    authority: String,
    path: String,
}

// === impl Target ===

impl Target {
    /// Resolves host and port.
    pub fn resolve(get: &HttpGet, container: &ContainerView, pod_address: Option<&str>) -> Result<Self, HttpHookError> {
        let host = get.host.as_deref().or(pod_address).ok_or(HttpHookError::NoAddress)?;
        let host = if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        let path = if get.path.starts_with('/') {
            get.path.clone()
        } else {
            format!("/{}", get.path)
        };
        Ok(Self {
            authority: format!("{host}:{}", port(&get.port, container)?),
            path,
        })
    }

    fn url(&self, scheme: &str) -> Result<reqwest::Url, HttpHookError> {
        let url = format!("{scheme}://{}{}", self.authority, self.path);
        reqwest::Url::parse(&url).map_err(|_| HttpHookError::BadUrl(url))
    }
}

/// A string is always a name, even if it has only digits, as since kubelet 1.37: `pkg/probe/util.go` `ResolveContainerPort`.
fn port(port: &HookPort, container: &ContainerView) -> Result<u16, HttpHookError> {
    let (number, text) = match port {
        HookPort::Number(number) => (Some(*number), number.to_string()),
        HookPort::Name(name) => {
            let mut ports = container.ports.iter();
            let named = ports.find(|(port, _)| port == name).map(|(_, number)| *number);
            (named, format!("{name:?}"))
        }
    };
    number
        .and_then(|number| u16::try_from(number).ok())
        .filter(|number| *number > 0)
        .ok_or(HttpHookError::BadPort(text))
}

/// Sends the request. If an https port speaks plain http, it is sent again in plain http, without credentials.
pub async fn get(get: &HttpGet, target: &Target, effects: &Effects) -> Result<(), HttpHookError> {
    let mut headers = headers(&get.headers);
    let scheme = if get.https { "https" } else { "http" };
    // The gate was checked before the start of the hook was recorded.
    effects.check()?;
    let request = send(target.url(scheme)?, headers.clone());
    let Err(first) = effects.run_until_blocked(request).await? else {
        return Ok(());
    };
    if get.https && speaks_plain_http(&first) {
        headers.remove(header::AUTHORIZATION);
        effects.check()?;
        let request = send(target.url("http")?, headers);
        if effects.run_until_blocked(request).await?.is_ok() {
            return Ok(());
        }
    }
    Err(HttpHookError::NoAnswer(ForeignText::new(&causes(&first)).into()))
}

async fn send(url: reqwest::Url, headers: HeaderMap) -> Result<(), reqwest::Error> {
    client()?.get(url).headers(headers).send().await.map(drop)
}

/// Created for the first hook: most nodes never need it.
fn client() -> Result<&'static reqwest::Client, reqwest::Error> {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client);
    }
    let redirects = reqwest::redirect::Policy::custom(|attempt| {
        let same_host = attempt
            .previous()
            .last()
            .is_some_and(|last| last.host() == attempt.url().host());
        if same_host && attempt.previous().len() <= MAX_REDIRECTS {
            attempt.follow()
        } else {
            attempt.stop()
        }
    });
    let client = reqwest::Client::builder()
        .use_preconfigured_tls(unchecked_tls())
        .no_proxy()
        .pool_max_idle_per_host(0)
        .redirect(redirects)
        .build()?;
    Ok(CLIENT.get_or_init(|| client))
}

/// TLS without verification, like the kubelet's probes.
fn unchecked_tls() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap_or_else(|_| unreachable!("the provider supports the default versions"))
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Unchecked(provider)))
        .with_no_client_auth()
}

fn headers(pairs: &[(String, String)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        // The API server rejects invalid names and values. Others cannot be sent.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.append(name, value);
        }
    }
    headers
        .entry(header::USER_AGENT)
        .or_insert(HeaderValue::from_static(USER_AGENT));
    let accept = headers.entry(header::ACCEPT).or_insert(HeaderValue::from_static("*/*"));
    if accept.is_empty() {
        headers.remove(header::ACCEPT);
    }
    headers
}

/// Whether the response to a handshake was not TLS, as from a plain http server.
fn speaks_plain_http(error: &reqwest::Error) -> bool {
    let is_no_record = |mut cause: &(dyn Error + 'static)| {
        // The inner error of an `io::Error` is not one of its sources.
        while let Some(inner) = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            cause = inner;
        }
        matches!(
            cause.downcast_ref(),
            Some(rustls::Error::InvalidMessage(
                rustls::InvalidMessage::InvalidContentType
            ))
        )
    };
    chain(error).any(is_no_record)
}

fn causes(error: &reqwest::Error) -> String {
    chain(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// An error and all its causes.
fn chain(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(Some(error as &(dyn Error + 'static)), |&error| error.source())
}

/// Accepts any certificate.
#[derive(Debug)]
struct Unchecked(Arc<rustls::crypto::CryptoProvider>);

// === impl Unchecked ===

impl rustls::client::danger::ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _end_entity: &rustls::pki_types::CertificateDer<'_>,
        _intermediates: &[rustls::pki_types::CertificateDer<'_>],
        _server_name: &rustls::pki_types::ServerName<'_>,
        _ocsp_response: &[u8],
        _now: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &rustls::pki_types::CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &rustls::pki_types::CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, sync::Arc, time::Duration};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::timeout,
    };

    use super::*;

    #[test]
    fn string_port_is_a_name_even_if_it_has_only_digits() {
        let container = ContainerView {
            name: "main".into(),
            role: crate::model::pod::Role::Regular,
            pre_stop: None,
            ports: vec![
                ("admin".to_owned(), 9000),
                ("9001".to_owned(), 9002),
                ("none".to_owned(), 0),
            ],
        };
        let text = |name: &str| port(&HookPort::Name(name.to_owned()), &container).ok();
        let named = ["admin", "9001", "9000", "8080", "none", ""].map(text);
        assert_eq!(named, [Some(9000), Some(9002), None, None, None, None]);
        let number = |number| port(&HookPort::Number(number), &container).ok();
        assert_eq!(
            [8080, 65535, 0, 65536, -1].map(number),
            [Some(8080), Some(65535), None, None, None]
        );
    }

    /// Starts a listener that sends `answer` on each connection and closes it. Returns the result of the hook, and the requests.
    async fn heard(answer: &'static [u8], path: &str) -> (Result<(), HttpHookError>, Vec<String>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (sent, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let serving = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 4096];
                let length = stream.read(&mut request).await.unwrap();
                sent.send(String::from_utf8_lossy(&request[..length]).into_owned()).ok();
                stream.write_all(answer).await.ok();
            }
        });
        let hook = HttpGet {
            host: None,
            port: HookPort::Number(at.port().into()),
            path: path.to_owned(),
            https: true,
            headers: vec![("Authorization".to_owned(), "secret".to_owned())],
        };
        let target = Target {
            authority: at.to_string(),
            path: path.to_owned(),
        };
        let effects = Effects::new(Arc::new(|| Ok(())));
        let got = timeout(Duration::from_secs(30), get(&hook, &target, &effects))
            .await
            .unwrap();
        serving.abort();
        heard.close();
        let mut all = Vec::new();
        while let Some(request) = heard.recv().await {
            all.push(request);
        }
        (got, all)
    }

    #[tokio::test]
    async fn plain_http_server_gets_plain_http_without_credentials() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let (got, heard) = heard(answer, "/drain").await;
        assert!(got.is_ok(), "{got:?}");
        assert_eq!(heard.len(), 2);
        assert!(heard[1].starts_with("GET /drain "), "{heard:?}");
        assert!(!heard[1].contains("secret"), "{heard:?}");
    }

    #[tokio::test]
    async fn plain_http_depends_only_on_the_servers_answer() {
        // A handshake failure.
        let alert = &[21, 3, 3, 0, 2, 2, 40];
        let (got, heard) = heard(alert, "/InvalidContentType").await;
        assert!(matches!(got, Err(HttpHookError::NoAnswer(_))), "{got:?}");
        assert_eq!(heard.len(), 1, "{heard:?}");
    }

    #[tokio::test]
    async fn no_request_is_sent_while_the_gate_blocks() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let hook = HttpGet {
            host: None,
            port: HookPort::Number(listener.local_addr().unwrap().port().into()),
            path: "/".to_owned(),
            https: false,
            headers: Vec::new(),
        };
        let target = Target {
            authority: listener.local_addr().unwrap().to_string(),
            path: "/".to_owned(),
        };
        let held = || {
            Err(EffectsBlocked {
                reason: "a kubelet works here".to_owned(),
            })
        };
        let effects = Effects::new(Arc::new(held));
        // The request is never answered.
        let answer = timeout(Duration::from_secs(10), get(&hook, &target, &effects)).await;
        assert!(matches!(answer, Ok(Err(HttpHookError::Blocked(_)))), "{answer:?}");
        assert!(listener.accept().is_err());
    }
}
