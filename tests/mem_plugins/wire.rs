//! Bytes on the wire. The fakes use the same proto files as the agent, so messages are compared with literal bytes.

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pod_teardown::node::effects::Effects;
use pod_teardown::node::plugins::{ClaimRef, Csi, Dra, Kind, Registered, Registry};
use tokio::net::UnixListener;

use crate::Root;

/// URI and message of each call.
type Calls = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// Length of the prefix of every message: a compression flag and the size.
const PREFIX: usize = 5;

/// A driver's answers: its registration, its capabilities, and results for DRA.
fn answer(path: &str) -> &'static [u8] {
    match path.rsplit('/').next() {
        Some("GetInfo") => b"\x0a\x09CSIPlugin\x12\x01d\x1a\x02/e\x22\x031.0\x22\x031.1",
        Some("NodeGetCapabilities") => b"\x0a\x04\x0a\x02\x08\x02\x0a\x04\x0a\x02\x08\x01",
        Some("NodeUnprepareResources") => b"\x0a\x09\x0a\x01u\x12\x04\x0a\x02no",
        _ => b"",
    }
}

async fn serve(
    request: Request<Incoming>,
    seen: Calls,
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, hyper::Error> {
    let uri = request.uri().clone();
    let body = request.into_body().collect().await?.to_bytes();
    seen.lock().unwrap().push((uri.to_string(), body[PREFIX..].to_vec()));
    let answer = answer(uri.path());
    let length = u8::try_from(answer.len()).unwrap();
    let message = [&[0, 0, 0, 0, length], answer].concat();
    let well = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
    let body = Full::from(message).with_trailers(std::future::ready(Some(Ok(well))));
    Ok(Response::builder()
        .header("content-type", "application/grpc")
        .body(body)
        .unwrap())
}

/// Accepts calls and answers them with literal bytes.
fn listen(path: &Path) -> Calls {
    let listener = UnixListener::bind(path).unwrap();
    let calls = Calls::default();
    let seen = Arc::clone(&calls);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let seen = Arc::clone(&seen);
            let service = service_fn(move |request| serve(request, Arc::clone(&seen)));
            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
    calls
}

#[tokio::test(start_paused = true)]
async fn requests_and_answers_are_byte_for_byte_those_of_a_kubelet() {
    let root = Root::new();
    std::fs::create_dir(root.registry()).unwrap();
    let path = root.registry().join("x.sock");
    let calls = listen(&path);
    let csi = Csi::new("d", &path);
    let claim = ClaimRef {
        namespace: "ns".to_owned(),
        uid: "u".to_owned(),
        name: "n".to_owned(),
    };
    let effects = Effects::ungated();
    let registry = Registry::read(&root.registry(), &effects).await.unwrap();
    let found = Registered {
        kind: Some(Kind::Csi),
        name: "d".to_owned(),
        endpoint: "/e".into(),
        versions: vec!["1.0".to_owned(), "1.1".to_owned()],
        socket: path.clone(),
    };
    assert_eq!(registry.registered, [found]);
    assert_eq!(csi.supports_staging().await, Ok(true));
    assert_eq!(csi.unpublish("vol", Path::new("/t"), &effects).await, Ok(()));
    assert_eq!(csi.unstage("vol", Path::new("/s"), &effects).await, Ok(()));
    for service in ["v1.DRAPlugin", "v1beta1.DRAPlugin"] {
        let plugin = Dra::new("d", &path, service);
        let answer = plugin.unprepare(std::slice::from_ref(&claim), &effects).await.unwrap();
        assert_eq!(answer.failed["u"], "no");
    }
    let expected: [(&str, &[u8]); 6] = [
        ("/pluginregistration.Registration/GetInfo", b""),
        ("/csi.v1.Node/NodeGetCapabilities", b""),
        ("/csi.v1.Node/NodeUnpublishVolume", b"\x0a\x03vol\x12\x02/t"),
        ("/csi.v1.Node/NodeUnstageVolume", b"\x0a\x03vol\x12\x02/s"),
        (
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            b"\x0a\x0a\x0a\x02ns\x12\x01u\x1a\x01n",
        ),
        (
            "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
            b"\x0a\x0a\x0a\x02ns\x12\x01u\x1a\x01n",
        ),
    ];
    let expected = expected.map(|(call, message)| (format!("http://localhost{call}"), message.to_vec()));
    assert_eq!(*calls.lock().unwrap(), expected);
}
