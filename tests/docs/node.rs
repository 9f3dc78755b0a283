//! A node with an agent, an in-memory API server and a scripted runtime, on the real clock.
//!
//! Its pods are those of the pages: `default/web-0` runs, and `default/db-0` is deleted and waits for a volume.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Parser as _;
use pod_teardown::{
    agent,
    cli::{Cli, Verb},
    clock::BootClock,
    config,
    node::host::Host,
    ops::{admin, client},
    outside::Outside,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::{
    api::ApiServer as _,
    apiserver::{Config, MemApiServer},
    host_files,
    rest::Client,
    scripted_cri::{ScriptedCri, World},
};
use tokio::time::Instant;
use tokio::{
    process::Command,
    sync::oneshot,
    time::{sleep, timeout},
};

const NODE: &str = "worker-1";
/// Much longer than any command takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The node. Its agent exits with it.
pub struct Node {
    dir: TempDir,
    admin: Client,
    _api: MemApiServer,
    cri: ScriptedCri,
    _stop: oneshot::Sender<()>,
}

/// Exit code and output of a command.
#[derive(Debug)]
pub struct Output {
    pub code: Option<i32>,
    pub text: String,
}

// === impl Node ===

impl Node {
    /// A node whose agent is active and has begun the teardown of `default/db-0`.
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        host_files::create(dir.path()).unwrap();
        let config = Config {
            nodes: vec![NODE.to_owned()],
            ..Config::default()
        };
        let api = MemApiServer::start(config).await.unwrap();
        fs::write(path("kubeconfig"), api.node_kubeconfig(NODE)).unwrap();
        let cri = ScriptedCri::start(World::new()).await;
        cri.allow_everything();
        let settings = settings(dir.path(), &cri.endpoint()).await;
        let host = Host {
            sys_block: path("sys/block"),
            processors: 2,
            root: path("root"),
            proc: path("proc"),
            mountinfo: path("mountinfo"),
            cgroups: path("cgroup"),
            clock: {
                let start = Instant::now();
                BootClock::of("boot-1", move || Duration::from_secs(1000) + start.elapsed())
            },
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async {
            stopped.await.ok();
        };
        tokio::spawn(agent::run_on(host, Outside::default(), settings, stopped));
        let node = Self {
            admin: api.admin().unwrap(),
            dir,
            _api: api,
            cri,
            _stop: stop,
        };
        node.add_pod("web-0");
        node.add_pod("db-0");
        let volume = node.path("kubelet/pods/uid-db-0/volumes/kubernetes.io~iscsi/data");
        fs::create_dir_all(volume).unwrap();
        node.admin.delete_pod("default", "db-0", Some(1)).await.unwrap();
        node.wait_for("the teardown of db-0 waits for its volume", |status| {
            status.contains("db-0") && status.contains("iscsi")
        })
        .await;
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn add_pod(&self, name: &str) {
        let uid = format!("uid-{name}");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "default", "uid": uid },
            "spec": {
                "nodeName": NODE, "terminationGracePeriodSeconds": 30,
                "containers": [{ "name": "main", "image": "registry.test/busybox:1" }],
            },
            "status": { "phase": "Running", "podIP": "10.88.0.7", "startTime": "2026-01-01T00:00:00Z" },
        });
        self._api.insert_raw(pod).unwrap();
        self.cri
            .change(|world| drop(world.pod("default", name, &uid).container("main")));
        fs::create_dir_all(self.path("kubelet/pods").join(&uid).join("etc-hosts")).unwrap();
        fs::create_dir_all(self.path("logs").join(format!("default_{name}_{uid}/main"))).unwrap();
        fs::create_dir_all(self.path("cgroup/kubepods/besteffort").join(format!("pod{uid}"))).unwrap();
    }

    /// Runs the real program with these arguments. It runs again if the agent has not answered in time.
    pub async fn run(&self, arguments: &[String]) -> Output {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = self.run_once(arguments).await;
            let is_late = output.text.contains("gives no valid answer: nothing within");
            if !is_late || Instant::now() > deadline {
                return output;
            }
        }
    }

    async fn run_once(&self, arguments: &[String]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pod-teardown"));
        command
            .args(arguments)
            .env_clear()
            .env("POD_TEARDOWN_SOCKET", self.path("socket"));
        let output = command.kill_on_drop(true).output();
        let output = timeout(PATIENCE, output).await.expect("the command ends").unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        Output {
            code: output.status.code(),
            text: text.concat(),
        }
    }

    async fn wait_for(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = client::get::<Value>(&self.path("socket"), admin::STATUS).await;
            let status = status.map(|status| status.to_string()).unwrap_or_default();
            if is_so(&status) {
                return;
            }
            assert!(Instant::now() < deadline, "never: {what}\n{status}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn settings(dir: &Path, endpoint: &str) -> config::Settings {
    let path = |name: &str| dir.join(name).display().to_string();
    let flags = [
        ("--kubeconfig", path("kubeconfig")),
        ("--node-name", NODE.to_owned()),
        ("--cri-endpoint", endpoint.to_owned()),
        ("--kubelet-root", path("kubelet")),
        ("--kubelet-config", path("kubelet.yaml")),
        ("--state-dir", path("state")),
        ("--socket", path("socket")),
        ("--mode", "auto".to_owned()),
        ("--take-over-after", "2s".to_owned()),
    ];
    let arguments = flags.iter().flat_map(|(flag, value)| [*flag, value]);
    let cli = Cli::parse_from(["pod-teardown", "run"].into_iter().chain(arguments));
    let Verb::Run(flags) = cli.verb else {
        unreachable!("it is run");
    };
    config::validate(&flags).await.unwrap()
}
