//! What a tenant may do in its namespace, and must not do to others.

use std::{
    net::UdpSocket,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::rest::Patch;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_util::task::AbortOnDropHandle;

use crate::scene::{LIMIT, Scene, eventually, found, in_namespace, owned, plain};

const MAPS: &str = "configmaps/v1";
const SERVICES: &str = "services/v1";

/// A tenant's server in a pod. It shows an object of another namespace as garbage, at its real version, and as changed
/// when it is deleted.
struct Server {
    ip: String,
    port: u16,
    asked: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
}

/// An address of this machine that the API server's proxy can reach. It refuses loopback addresses.
fn own_ip() -> Result<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").context("make a socket")?;
    // Connecting a UDP socket sends nothing.
    socket
        .connect("192.0.2.1:9")
        .context("find the way to other machines")?;
    Ok(socket.local_addr()?.ip().to_string())
}

impl Server {
    async fn start(victim: &Value, at: (&str, &str)) -> Result<Self> {
        let ip = own_ip()?;
        let listener = TcpListener::bind((&*ip, 0)).await.context("listen")?;
        let port = listener.local_addr()?.port();
        let never = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": "0b9a8230-aace-4480-91d0-db24e46eb609",
        });
        let shown = |(namespace, name): (&str, &str), version: &Value| {
            let metadata = json!({
                "namespace": namespace, "name": name, "uid": victim["metadata"]["uid"], "resourceVersion": version,
                "ownerReferences": [never],
            });
            json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata}).to_string()
        };
        let first = shown(at, &json!(u64::MAX.to_string()));
        let metadata = &victim["metadata"];
        let place = |field: &str| metadata[field].as_str().unwrap_or_default();
        let then = shown((place("namespace"), place("name")), &metadata["resourceVersion"]);
        let conflict = json!({"kind": "Status", "apiVersion": "v1", "code": 409, "reason": "Conflict"}).to_string();
        let asked = Arc::new(AtomicUsize::new(0));
        let heard = Arc::clone(&asked);
        let serve = async move {
            let mut refused = false;
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                // The first read has the verb; silent clients get an answer, too.
                let length = stream.read(&mut request).await.unwrap_or_default();
                heard.fetch_add(1, Ordering::Relaxed);
                let (code, body) = if request[..length].starts_with(b"DELETE") {
                    refused = true;
                    ("409 Conflict", &conflict)
                } else if refused {
                    ("200 OK", &then)
                } else {
                    ("200 OK", &first)
                };
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
                stream.write_all(answer.as_bytes()).await.ok();
            }
        };
        Ok(Self {
            ip,
            port,
            asked,
            _task: AbortOnDropHandle::new(tokio::spawn(serve)),
        })
    }

    /// Creates a Service of this name that leads to it through a pod.
    async fn offer(&self, s: &Scene, namespace: &str, name: &str) -> Result<()> {
        let admin = s.admin();
        let ports = json!([{"name": "http", "port": 80, "targetPort": self.port}]);
        let service = json!({"metadata": {"name": name}, "spec": {"ports": ports}});
        admin.create(&in_namespace(SERVICES, namespace), &service).await?.ok()?;
        let pods = in_namespace("pods/v1", namespace);
        let pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
        // The namespace has no service account yet.
        let made = eventually(LIMIT, "a pod of the tenant", async || {
            Ok(admin.create(&pods, &pod).await?.ok().ok())
        });
        let pod = made.await?;
        let status = json!({"status": {"phase": "Running", "podIP": self.ip, "podIPs": [{"ip": self.ip}]}});
        admin
            .patch(&format!("{pods}/{name}/status"), Patch::Merge, &status)
            .await?
            .ok()?;
        let target = json!({"kind": "Pod", "name": name, "namespace": namespace, "uid": pod["metadata"]["uid"]});
        let subset = json!({
            "addresses": [{"ip": self.ip, "targetRef": target}], "ports": [{"name": "http", "port": self.port}],
        });
        let endpoints = json!({"metadata": {"name": name}, "subsets": [subset]});
        admin
            .create(&in_namespace("endpoints/v1", namespace), &endpoints)
            .await?
            .ok()?;
        Ok(())
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

pub async fn an_owner_name_that_leads_to_a_tenants_server_deletes_no_object_of_another_namespace(
    s: &Scene,
) -> Result<()> {
    // The right to read the object is enough to know this.
    let service = json!({"metadata": {"name": "victim"}, "spec": {"ports": [{"port": 80}]}});
    let service = s.create(SERVICES, &service).await?;
    let tenant = format!("{}-tenant", s.namespace);
    s.new_namespace(&tenant).await?;
    let name = "evil:http/proxy/x";
    let server = Server::start(&service, (&tenant, name)).await?;
    server.offer(s, &tenant, "evil").await?;
    let through = in_namespace(SERVICES, &tenant) + "/evil:http/proxy/x";
    eventually(LIMIT, "the tenant's server to be asked through the proxy", async || {
        let answer = s.admin().get(&through).await?;
        Ok((answer.body["metadata"]["uid"] == service["metadata"]["uid"]).then_some(()))
    })
    .await?;
    let before = server.asked();

    let owner = json!({"apiVersion": "v1", "kind": "Service", "name": name, "uid": service["metadata"]["uid"]});
    let maps = in_namespace(MAPS, &tenant);
    let made = s.admin().create(&maps, &plain("evil", &owned([owner]))).await?.ok()?;
    s.wait_until_processed(MAPS).await?;
    let victim = s.expect_unchanged(SERVICES, "victim").await?;
    ensure!(victim["metadata"]["uid"] == service["metadata"]["uid"], "{victim}");
    let asked = server.asked() - before;
    ensure!(asked == 0, "the collector has asked the tenant's server {asked} times");
    let kept = found(s.admin(), &format!("{maps}/evil")).await?;
    ensure!(
        kept.is_some_and(|kept| kept["metadata"]["uid"] == made["metadata"]["uid"]),
        "its owner is unresolved, so it must stay"
    );
    Ok(())
}
