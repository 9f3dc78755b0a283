//! preStop hooks. They run within the grace period, never again once finished, and never prevent the stop. `httpGet` is as the
//! kubelet's: certificates are not verified, and any response is success.

use std::{error::Error, io, sync::LazyLock, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use k8s_openapi::{api::core::v1::HTTPGetAction, apimachinery::pkg::util::intstr::IntOrString};
use rustls::InvalidMessage;
use thiserror::Error;
use tokio::time::Instant;

use crate::{
    model::{
        blocked::Blocked,
        foreign::ForeignText,
        pod::{ContainerView, Hook},
    },
    node::{effects::Effects, grpc::GrpcError},
    teardown::context::LocalNode,
    why::Why,
};

/// Maximum number of redirects, all to the same host name.
const MAX_REDIRECTS: usize = 10;
/// User agent of kubelet 1.37.
const USER_AGENT: &str = "kube-lifecycle/1.37";

/// Created for the first hook: most nodes never need it. The error is why it cannot be.
static CLIENT: LazyLock<Result<reqwest::Client, Why>> = LazyLock::new(|| {
    let redirects = reqwest::redirect::Policy::custom(|attempt| {
        let last = attempt.previous().last();
        let same_host = last.is_some_and(|last| last.host() == attempt.url().host());
        match same_host && attempt.previous().len() <= MAX_REDIRECTS {
            true => attempt.follow(),
            false => attempt.stop(),
        }
    });
    // It fails if the process has a provider, which is as good.
    rustls::crypto::ring::default_provider().install_default().ok();
    let client = reqwest::Client::builder()
        .tls_danger_accept_invalid_certs(true)
        .no_proxy()
        .pool_max_idle_per_host(0)
        .redirect(redirects);
    client.build().map_err(|error| causes(&error).into())
});

/// Why a hook failed. Its output may contain secrets, and is not part of events.
#[derive(Debug, Error)]
pub enum HookError {
    /// The command exited with another code than 0.
    #[error("exec exited with code {0}")]
    ExitCode(i32),
    /// The runtime could not run it.
    #[error(transparent)]
    Runtime(#[from] GrpcError),
    /// The request could not be sent, or there was no response.
    #[error("httpGet: {0}")]
    HttpGet(String),
    /// The gate closed before it finished.
    #[error("blocked: {0}")]
    Blocked(#[from] Blocked),
    /// The grace period expired before the hook finished.
    #[error("still running when the grace period expired")]
    Overrun,
    /// The grace period expired before the hook started.
    #[error("skipped: the grace period has no time left")]
    NoTime,
    /// The handler has nothing to run.
    #[error("the handler is empty or of an unknown kind")]
    Invalid,
}

/// Runs one hook that the gate has allowed, until it finishes or the gate closes. The caller limits it to the deadline. `deadline` is
/// the timeout for the runtime. `address`: pod IP, or the node's IP for pods with host network.
pub async fn run(
    node: &LocalNode,
    hook: &Hook,
    (container_id, spec): (&str, &ContainerView),
    address: Option<&str>,
    deadline: Instant,
) -> Result<(), HookError> {
    match hook {
        Hook::Exec(command) => {
            let left = deadline.saturating_duration_since(Instant::now());
            match node.cri.exec_sync(container_id, command.clone(), left).await? {
                0 => Ok(()),
                code => Err(HookError::ExitCode(code)),
            }
        }
        Hook::HttpGet(http) => get(http, spec, address, &node.effects).await,
        Hook::Sleep(seconds) => {
            // Extreme values overflow the clock.
            let wait = tokio::time::sleep(Duration::from_secs((*seconds).min(u64::from(u32::MAX))));
            Ok(node.effects.run_until_blocked(wait).await?)
        }
        Hook::Invalid => Err(HookError::Invalid),
    }
}

/// Scheme of the URL.
pub fn scheme(get: &HTTPGetAction) -> &'static str {
    match get.scheme.as_deref() {
        Some(scheme) if scheme.eq_ignore_ascii_case("https") => "https",
        _ => "http",
    }
}

/// The URL with this scheme.
pub fn url(
    get: &HTTPGetAction,
    scheme: &str,
    container: &ContainerView,
    pod_address: Option<&str>,
) -> Result<String, HookError> {
    let no_address = || HookError::HttpGet("the pod has no IP and the handler names no host".to_owned());
    let host = get.host.as_deref().or(pod_address).ok_or_else(no_address)?;
    let (open, close) = match host.contains(':') && !host.starts_with('[') {
        true => ("[", "]"),
        false => ("", ""),
    };
    let path = get.path.as_deref().unwrap_or_default();
    let slash = if path.starts_with('/') { "" } else { "/" };
    let port = port(&get.port, container)?;
    Ok(format!("{scheme}://{open}{host}{close}:{port}{slash}{path}"))
}

/// A string is always a name, even if it has only digits, as since kubelet 1.37: `pkg/probe/util.go` `ResolveContainerPort`.
fn port(port: &IntOrString, container: &ContainerView) -> Result<u16, HookError> {
    let (number, text) = match port {
        IntOrString::Int(number) => (Some(*number), number.to_string()),
        IntOrString::String(name) => {
            let mut ports = container.ports.iter();
            let named = ports.find(|(port, _)| port == name).map(|(_, number)| *number);
            (named, format!("{name:?}"))
        }
    };
    let number = number.and_then(|number| u16::try_from(number).ok());
    number.filter(|number| *number > 0).ok_or_else(|| {
        let why = "is neither the name of a port of the container nor a number from 1 to 65535";
        HookError::HttpGet(format!("port {text} {why}"))
    })
}

/// Sends the request. If an https port speaks plain http, it is sent again in plain http, without credentials.
async fn get(
    get: &HTTPGetAction,
    container: &ContainerView,
    address: Option<&str>,
    effects: &Effects,
) -> Result<(), HookError> {
    let client = CLIENT.as_ref().map_err(|why| HookError::HttpGet(why.to_string()))?;
    let send = async |scheme: &str, headers: HeaderMap| {
        let url = url(get, scheme, container, address)?;
        let url = reqwest::Url::parse(&url).map_err(|_| HookError::HttpGet(format!("{url:?} is no URL")))?;
        let request = client.get(url).headers(headers).send();
        // The gate was checked before the start of the hook was recorded.
        effects.check()?;
        Ok::<_, HookError>(effects.run_until_blocked(request).await?)
    };
    let (scheme, mut headers) = (scheme(get), headers(get));
    let Err(first) = send(scheme, headers.clone()).await? else {
        return Ok(());
    };
    if scheme == "https" && speaks_plain_http(&first) {
        headers.remove(header::AUTHORIZATION);
        if send("http", headers).await?.is_ok() {
            return Ok(());
        }
    }
    Err(HookError::HttpGet(ForeignText::new(&causes(&first)).into()))
}

fn headers(get: &HTTPGetAction) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for pair in get.http_headers.iter().flatten() {
        // The API server rejects invalid names and values. Others cannot be sent.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(&pair.name), HeaderValue::try_from(&pair.value)) {
            headers.append(name, value);
        }
    }
    let user_agent = HeaderValue::from_static(USER_AGENT);
    headers.entry(header::USER_AGENT).or_insert(user_agent);
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
        let not_tls = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
        cause.downcast_ref() == Some(&not_tls)
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

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, sync::Arc, time::Duration};

    use k8s_openapi::api::core::v1::HTTPHeader;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::timeout,
    };

    use super::*;

    fn container(ports: &[(&str, i32)]) -> ContainerView {
        ContainerView {
            name: "main".into(),
            role: crate::model::pod::Role::Regular,
            pre_stop: None,
            ports: ports.iter().map(|&(name, port)| (name.to_owned(), port)).collect(),
        }
    }

    fn hook(port: u16, path: &str, scheme: &str) -> HTTPGetAction {
        HTTPGetAction {
            port: IntOrString::Int(port.into()),
            path: Some(path.to_owned()),
            scheme: Some(scheme.to_owned()),
            ..HTTPGetAction::default()
        }
    }

    #[test]
    fn string_port_is_a_name_even_if_it_has_only_digits() {
        let container = container(&[("admin", 9000), ("9001", 9002), ("none", 0)]);
        let text = |name: &str| port(&IntOrString::String(name.to_owned()), &container).ok();
        let named = ["admin", "9001", "9000", "8080", "none", ""].map(text);
        assert_eq!(named, [Some(9000), Some(9002), None, None, None, None]);
        let number = |number| port(&IntOrString::Int(number), &container).ok();
        assert_eq!(
            [8080, 65535, 0, 65536, -1].map(number),
            [Some(8080), Some(65535), None, None, None]
        );
    }

    /// Starts a listener that sends `answer` on each connection and closes it. Returns the result of the hook, and the requests.
    async fn heard(answer: &'static [u8], path: &str) -> (Result<(), HookError>, Vec<String>) {
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
        let hook = HTTPGetAction {
            http_headers: Some(vec![HTTPHeader {
                name: "Authorization".to_owned(),
                value: "secret".to_owned(),
            }]),
            ..hook(at.port(), path, "HTTPS")
        };
        let effects = Effects::new(Arc::new(|| Ok(())));
        let container = container(&[]);
        let got = get(&hook, &container, Some("127.0.0.1"), &effects);
        let got = timeout(Duration::from_secs(30), got).await.unwrap();
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
        assert!(matches!(got, Err(HookError::HttpGet(_))), "{got:?}");
        assert_eq!(heard.len(), 1, "{heard:?}");
    }

    #[tokio::test]
    async fn no_request_is_sent_while_the_gate_blocks() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let hook = hook(listener.local_addr().unwrap().port(), "/", "HTTP");
        let held = || Err(Blocked::Other("a kubelet works here".to_owned()));
        let effects = Effects::new(Arc::new(held));
        // The request is never answered.
        let container = container(&[]);
        let answer = get(&hook, &container, Some("127.0.0.1"), &effects);
        let answer = timeout(Duration::from_secs(10), answer).await;
        assert!(matches!(answer, Ok(Err(HookError::Blocked(_)))), "{answer:?}");
        assert!(listener.accept().is_err());
    }
}
