//! Probe of the kubelet's healthz endpoint.

use std::{
    convert::Infallible,
    error::Error,
    fmt::Display,
    future::pending,
    io::{self, ErrorKind},
    net::SocketAddr,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use super::probes::Probe;

/// Timeout of each of the two steps, connect and answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Probes the endpoint once. Only `200 OK` is Alive. The answer of another program, such as a pod on the host network, is Down:
/// `is_kubelets` returns whether a process that may be a kubelet listens there.
pub async fn probe(at: SocketAddr, is_kubelets: impl AsyncFnOnce() -> io::Result<bool>) -> Probe {
    probe_within(TIMEOUT, at, is_kubelets).await
}

/// As [`probe`], with this timeout of each of the two steps.
async fn probe_within(step: Duration, at: SocketAddr, is_kubelets: impl AsyncFnOnce() -> io::Result<bool>) -> Probe {
    let detail = |what: &dyn Display| format!("http://{at}/healthz: {what}");
    let stream = match timeout(step, TcpStream::connect(at)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if is_local_error(error.kind()) => return Probe::Unknown(detail(&error)),
        Ok(Err(error)) => return Probe::Down(detail(&error)),
        Err(_) => return Probe::Down(detail(&"connect timed out")),
    };
    match timeout(step, get_healthz(stream, at)).await {
        Ok(Ok(StatusCode::OK)) => match is_kubelets().await {
            Ok(true) => Probe::Alive(detail(&"ok")),
            Ok(false) => Probe::Down(detail(&"ok, but no process listens there that may be a kubelet")),
            Err(why) => Probe::Unknown(detail(&format_args!(
                "ok, but the process that listens there is unknown: {why}"
            ))),
        },
        Ok(Ok(code)) => Probe::Down(detail(&code)),
        Ok(Err(error)) => Probe::Down(detail(&error)),
        Err(_) => Probe::Down(detail(&format_args!("nothing within {step:?}"))),
    }
}

/// Whether the error is local, such as too many open files, and says nothing about the listener.
fn is_local_error(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::TimedOut
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::AddrNotAvailable
    )
}

async fn get_healthz(stream: TcpStream, at: SocketAddr) -> Result<StatusCode, Box<dyn Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get("/healthz")
        .header(header::HOST, at.to_string())
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let connection = async {
        connection.await.ok();
        // The sender returns the answer or the error.
        pending::<Infallible>().await
    };
    tokio::select! {
        answer = sender.send_request(request) => Ok(answer?.status()),
        never = connection => match never {},
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use crate::handover::probes::ProbeState;

    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    async fn probed(answer: Option<&'static str>, is_kubelets: io::Result<bool>) -> Probe {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 256]).await.unwrap() > 0);
            match answer {
                Some(answer) => stream.write_all(answer.as_bytes()).await.unwrap(),
                None => std::future::pending().await,
            }
        });
        // An answer may be late on a busy machine.
        let limit = answer.map_or(TIMEOUT, |_| Duration::from_secs(60));
        let result = probe_within(limit, at, async || is_kubelets).await;
        serving.abort();
        result
    }

    #[tokio::test]
    async fn only_a_healthy_kubelet_is_alive() {
        let broken = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
        let unknown = || Err(io::Error::other("too many open files"));
        for (answer, is_kubelets, state, detail) in [
            (Some(OK), Ok(true), ProbeState::Alive, "ok"),
            (Some(broken), Ok(true), ProbeState::Down, "500"),
            (Some(""), Ok(true), ProbeState::Down, "/healthz: "),
            (Some("no HTTP\r\n\r\n"), Ok(true), ProbeState::Down, "/healthz: "),
            (None, Ok(true), ProbeState::Down, "nothing within 2s"),
            // Of another program.
            (Some(OK), Ok(false), ProbeState::Down, "no process listens there"),
            (Some(OK), unknown(), ProbeState::Unknown, "too many open files"),
        ] {
            let result = probed(answer, is_kubelets).await;
            assert_eq!(result.state(), state, "{answer:?}: {result:?}");
            assert!(result.detail().contains(detail), "{result:?}");
        }
    }

    #[tokio::test]
    async fn endpoint_without_a_listener_is_down() {
        let at = SocketAddr::from(([127, 0, 0, 1], 1));
        let result = probe(at, async || Ok(true)).await;
        assert!(matches!(result, Probe::Down(why) if why.contains("refused")));
    }
}
