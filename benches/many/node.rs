//! A node full of pods: objects in an API server in memory, containers in a scripted runtime, directories and cgroups.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use serde_json::json;
use tempfile::TempDir;
use testbed::{
    api::ApiServer as _,
    apiserver::{
        Config, MemApiServer,
        faults::{Action, Fault},
    },
    rest::Client,
    scripted_cri::{ScriptedCri, World},
};
use tokio::{runtime::Runtime, time::Instant};

pub const NODE: &str = "n1";
const PATIENCE: Duration = Duration::from_secs(180);

pub struct Node {
    api: MemApiServer,
    admin: Client,
    cri: ScriptedCri,
    pub dir: TempDir,
    /// Where the servers work.
    servers: Runtime,
}

pub fn name(pod: usize) -> String {
    format!("pod-{pod}")
}

// === impl Node ===

impl Node {
    /// With so many pods that run.
    pub fn with(pods: usize) -> Self {
        let dir = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
        let servers = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let config = Config {
            nodes: vec![NODE.to_owned()],
            ..Config::default()
        };
        let (api, cri) = servers.block_on(async {
            let api = MemApiServer::start(config).await.unwrap();
            (api, ScriptedCri::start(World::new()).await)
        });
        cri.allow_everything();
        let node = Self {
            admin: api.admin().unwrap(),
            api,
            cri,
            dir,
            servers,
        };
        node.lay_out();
        (0..pods).for_each(|pod| node.make(&name(pod)));
        node
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn endpoint(&self) -> String {
        self.cri.endpoint()
    }

    fn lay_out(&self) {
        for name in ["kubelet/pods", "logs", "root", "cgroup/kubepods/besteffort", "proc"] {
            fs::create_dir_all(self.path(name)).unwrap();
        }
        for process in ["self", "1", &std::process::id().to_string()] {
            symlink(Path::new("/proc").join(process), self.path("proc").join(process)).unwrap();
        }
        let mount = format!(
            "31 1 0:27 / {} rw - cgroup2 cgroup2 rw\n",
            self.path("cgroup").display()
        );
        fs::write(self.path("mountinfo"), mount).unwrap();
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "podLogsDir": self.path("logs"),
        });
        fs::write(self.path("kubelet.yaml"), config.to_string()).unwrap();
        fs::write(self.path("kubeconfig"), self.api.node_kubeconfig(NODE)).unwrap();
    }

    /// With as much in its object as an ordinary pod has.
    fn make(&self, name: &str) {
        let uid = format!("uid-{name}");
        let environment: Vec<_> = (0..20)
            .map(|number| json!({ "name": format!("VARIABLE_{number}"), "value": "what an ordinary program wants to know" }))
            .collect();
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "default", "uid": uid, "labels": { "app": "many" } },
            "spec": {
                "nodeName": NODE, "terminationGracePeriodSeconds": 30,
                "containers": [{ "name": "main", "image": "registry.test/busybox:1", "env": environment }],
            },
            "status": { "phase": "Running", "podIP": "10.88.0.7", "startTime": "2026-01-01T00:00:00Z" },
        });
        self.api.insert_raw(object).unwrap();
        self.cri
            .change(|world| drop(world.pod("default", name, &uid).container("main")));
        fs::create_dir_all(self.path("kubelet/pods").join(&uid).join("etc-hosts")).unwrap();
        fs::create_dir_all(self.path(&format!("cgroup/kubepods/besteffort/pod{uid}"))).unwrap();
    }

    pub fn delete(&self, name: &str) {
        let deleted = self.admin.delete_pod("default", name, None);
        self.servers.block_on(deleted).unwrap();
    }

    /// Objects that are there.
    pub fn pods(&self) -> usize {
        self.api.count("v1", "Pod")
    }

    /// Nothing is left in the runtime.
    pub fn is_clean(&self) -> bool {
        self.cri.look(World::is_empty)
    }

    /// How often the agent has begun to watch, which it does after each list.
    pub fn listed(&self) -> usize {
        let watches = |request: &testbed::apiserver::requests::Request| {
            request.asked.verb == "watch" && request.asked.resource == "pods" && request.code == Some(200)
        };
        self.api.requests().iter().filter(|request| watches(request)).count()
    }

    /// The agent's watch ends, and it may not begin another before it has listed.
    pub fn make_it_list(&self) {
        let faults = self.api.faults();
        faults.inject(Fault::status(410).verb("watch").resource("pods").once());
        faults.inject(Fault::new(Action::CutWatch).once());
    }

    pub fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let late = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < late, "never within {PATIENCE:?}: {what}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}
