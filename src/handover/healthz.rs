//! What answers where the kubelet tells its health.

use std::{
    convert::Infallible, error::Error, fmt::Display, future::pending, io::ErrorKind, net::SocketAddr, time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use super::probes::Probe;

/// A kubelet that takes longer tells nobody that it is well.
const PATIENCE: Duration = Duration::from_secs(2);

/// One look. Only `200 OK` is a sign of life: a kubelet that says it is not well does not work, and one that is dead answers
/// nothing. An answer of another program, such as a pod on the host's network, is none: `is_kubelets` returns whether a process
/// that may be a kubelet listens there.
pub async fn look(at: SocketAddr, is_kubelets: impl AsyncFnOnce() -> Result<bool, String>) -> Probe {
    let told = |what: &dyn Display| format!("http://{at}/healthz: {what}");
    let stream = match timeout(PATIENCE, TcpStream::connect(at)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if is_ours(error.kind()) => return Probe::Unknown(told(&error)),
        Ok(Err(error)) => return Probe::Down(told(&error)),
        Err(_) => return Probe::Down(told(&"nobody accepts")),
    };
    match timeout(PATIENCE, ask(stream, at)).await {
        Ok(Ok(StatusCode::OK)) => match is_kubelets().await {
            Ok(true) => Probe::Alive(told(&"ok")),
            Ok(false) => Probe::Down(told(&"ok, but no process listens there that may be a kubelet")),
            Err(why) => Probe::Unknown(told(&format_args!(
                "ok, but the process that listens there is unknown: {why}"
            ))),
        },
        Ok(Ok(code)) => Probe::Down(told(&code)),
        Ok(Err(error)) => Probe::Down(told(&error)),
        Err(_) => Probe::Down(told(&format_args!("nothing within {PATIENCE:?}"))),
    }
}

/// Whether a connection fails by the agent's own trouble, such as too many open files, and not for want of a listener.
fn is_ours(kind: ErrorKind) -> bool {
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

async fn ask(stream: TcpStream, at: SocketAddr) -> Result<StatusCode, Box<dyn Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get("/healthz")
        .header(header::HOST, at.to_string())
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let connection = async {
        connection.await.ok();
        // The answer, or that there is none, is told by the sender.
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

    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    async fn looked(answer: Option<&'static str>) -> Probe {
        looked_at(answer, Ok(true)).await
    }

    async fn looked_at(answer: Option<&'static str>, is_kubelets: Result<bool, String>) -> Probe {
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
        let look = look(at, async || is_kubelets).await;
        serving.abort();
        look
    }

    #[tokio::test]
    async fn only_a_kubelet_that_is_well_gives_a_sign_of_life() {
        assert!(matches!(looked(Some(OK)).await, Probe::Alive(_)));
        let broken = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
        for (answer, said) in [
            (Some(broken), "500"),
            (Some(""), "/healthz: "),
            (Some("no HTTP\r\n\r\n"), "/healthz: "),
            (None, "nothing within 2s"),
        ] {
            let look = looked(answer).await;
            assert!(
                matches!(&look, Probe::Down(why) if why.contains(said)),
                "{answer:?}: {look:?}"
            );
        }
    }

    #[tokio::test]
    async fn where_nobody_listens_there_is_no_sign_of_life() {
        let at = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let look = look(at, async || Ok(true)).await;
        assert!(matches!(look, Probe::Down(why) if why.contains("refused")));
    }

    #[tokio::test]
    async fn an_answer_of_another_program_is_no_answer_of_the_kubelet() {
        let look = looked_at(Some(OK), Ok(false)).await;
        assert!(
            matches!(&look, Probe::Down(why) if why.contains("no process listens there that may be a kubelet")),
            "{look:?}"
        );
        let look = looked_at(Some(OK), Err("too many open files".to_owned())).await;
        assert!(
            matches!(&look, Probe::Unknown(why) if why.contains("too many open files")),
            "{look:?}"
        );
    }
}
