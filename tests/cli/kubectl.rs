//! `kubectl teardown`: the program under the name of the plugin, with a user's kubeconfig.

use std::{fs, os::unix::fs::symlink, process::Command};

use serde_json::{Value, json};
use testbed::{
    api::ApiServer as _,
    apiserver::{Config, MemApiServer},
    rest::{Client, Patch},
};

use crate::command::{CommandOutput, output_of};

struct Plugin {
    dir: tempfile::TempDir,
    api: MemApiServer,
    admin: Client,
}

impl Plugin {
    async fn new() -> Self {
        let api = MemApiServer::start(Config::default()).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config"), api.admin_kubeconfig()).unwrap();
        symlink(env!("CARGO_BIN_EXE_pod-teardown"), dir.path().join("kubectl-teardown")).unwrap();
        let admin = api.admin().unwrap();
        Self { dir, api, admin }
    }

    async fn create(&self, collection: &str, object: Value) {
        self.admin.create(collection, &object).await.unwrap().ok().unwrap();
    }

    async fn set_status(&self, path: &str, status: Value) {
        let patch = json!({ "status": status });
        let answer = self.admin.patch(&format!("{path}/status"), Patch::Merge, &patch).await;
        answer.unwrap().ok().unwrap();
    }

    /// Exit code, standard output and standard error.
    async fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(self.dir.path().join("kubectl-teardown"));
        command
            .args(arguments)
            .env("KUBECONFIG", self.dir.path().join("config"));
        let output = tokio::task::spawn_blocking(move || output_of(&mut command)).await;
        let CommandOutput { code, out, err } = output.unwrap();
        (code.unwrap(), out, err)
    }
}

/// A node whose kubelet is down and whose agent is active, with a pod that it cannot unmount.
async fn with_blocked_pod() -> Plugin {
    let plugin = Plugin::new().await;
    let now = jiff::Timestamp::now().to_string();
    plugin
        .create(
            "/api/v1/nodes",
            json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } }),
        )
        .await;
    let condition = |kind: &str, status: &str, reason: &str| json!({ "type": kind, "status": status, "reason": reason, "message": "m", "lastHeartbeatTime": now });
    let conditions = [
        condition("Ready", "Unknown", "NodeStatusUnknown"),
        condition("PodTeardownActive", "True", "KubeletDown"),
    ];
    plugin
        .set_status("/api/v1/nodes/n1", json!({ "conditions": conditions }))
        .await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "db-0", "namespace": "default", "finalizers": ["example.com/hold"] },
        "spec": { "nodeName": "n1", "containers": [{ "name": "main", "image": "i" }], "terminationGracePeriodSeconds": 1 },
    });
    plugin.create("/api/v1/namespaces/default/pods", pod).await;
    plugin
        .admin
        .delete("/api/v1/namespaces/default/pods/db-0", None)
        .await
        .unwrap()
        .ok()
        .unwrap();
    let pod = plugin.admin.get("/api/v1/namespaces/default/pods/db-0").await.unwrap();
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": { "name": "e1", "namespace": "default" },
        "involvedObject": { "kind": "Pod", "namespace": "default", "name": "db-0", "uid": pod.body["metadata"]["uid"] },
        "reason": "TeardownBlocked", "message": "volumes: /x is busy: pid 7 \"sleep\"", "type": "Warning",
        "lastTimestamp": now, "source": { "component": "pod-teardown" },
    });
    plugin.create("/api/v1/namespaces/default/events", event).await;
    plugin
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_shows_nodes_and_why_a_pod_is_blocked_and_writes_nothing() {
    let plugin = with_blocked_pod().await;
    plugin.api.forget_requests();
    let (code, out, error) = plugin.run(&["nodes"]).await;
    assert_eq!((code, &*error), (0, ""), "{out}");
    let line: Vec<&str> = out.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(line, ["n1", "Unknown", "active", "KubeletDown", "1", "1"], "{out}");
    let (code, out, _) = plugin.run(&["nodes", "-o", "json"]).await;
    let nodes: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &nodes[0]["agent"]["state"]), (0, &json!("active")));

    for arguments in [
        &["why", "db-0"][..],
        &["why", "-n", "default", "db-0"],
        &["why", "default/db-0"],
    ] {
        let (code, out, error) = plugin.run(arguments).await;
        assert_eq!((code, &*error), (0, ""), "{out}");
        assert!(out.contains("BLOCKED  pod-teardown reported TeardownBlocked"), "{out}");
        assert!(out.contains("LATER") && out.contains("example.com/hold"), "{out}");
    }
    let requests = plugin.api.requests();
    let writes: Vec<_> = requests
        .iter()
        .filter(|it| !matches!(&*it.asked.verb, "get" | "list"))
        .collect();
    assert!(writes.is_empty() && requests.len() > 6, "{writes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_names_what_is_missing() {
    let plugin = Plugin::new().await;
    for (arguments, code, text) in [
        (&["why", "nosuch"][..], 1, "pod default/nosuch not found"),
        (&["why", "-n", "a", "b/c"], 64, "name one of them"),
        (&["nodes", "--context", "none"], 1, "cannot use the kubeconfig"),
        (&["nodes", "--kubeconfig", "/no/such"], 1, "set KUBECONFIG"),
        (&["pods"], 64, "unrecognized subcommand"),
        // Without a name, the paths are those of lists.
        (&["why", ""], 64, "is no name of a pod"),
        (&["why", "default/"], 64, "is no name of a pod"),
        (&["why", "/web-0"], 64, "is no name of a pod"),
        (&["why", "a/b/c"], 64, "is no name of a pod"),
    ] {
        let (found, out, error) = plugin.run(arguments).await;
        assert_eq!(found, code, "{arguments:?} {out} {error}");
        assert!(error.contains(text), "{arguments:?}: {error}");
    }
    let (code, out, _) = plugin.run(&["--help"]).await;
    assert!(code == 0 && out.contains("Usage: kubectl teardown"), "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_cannot_be_reached_is_named_with_the_cause() {
    let plugin = Plugin::new().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let kubeconfig = plugin.api.admin_kubeconfig().replace(&plugin.api.url(), &closed);
    fs::write(plugin.dir.path().join("config"), kubeconfig).unwrap();
    let (code, _, error) = plugin.run(&["nodes"]).await;
    assert!(code == 1 && error.contains("refused"), "{error}");
}
