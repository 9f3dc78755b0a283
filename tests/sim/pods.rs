//! Pods after the kubelet went down: in the API, the runtime, the file system, the cgroups and the mount table.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use serde_json::{Value, json};
use testbed::{dice::Dice, scripted_cri::World};

pub const NODE: &str = "n1";

/// One pod.
#[derive(Debug, Clone)]
pub struct PodPlan {
    pub kind: Kind,
    pub grace: i64,
    pub finalizer: bool,
    pub containers: Vec<ContainerPlan>,
    /// Number of exited sandboxes.
    pub old_sandboxes: usize,
    pub volumes: Vec<Volume>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A running pod.
    Plain,
    /// A pod in a terminal phase.
    Terminal,
    /// A static pod in the runtime, with its mirror in the API.
    Mirror,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Volume {
    Directory,
    /// Mounted: an emptyDir in memory, or a tmpfs.
    Mounted,
}

#[derive(Debug, Clone)]
pub struct ContainerPlan {
    pub role: Role,
    pub hook: Hook,
    pub state: State,
    /// How long it takes to exit after its stop signal, and its exit code; `None` if it ignores the signal.
    pub obeys: Option<(Duration, i32)>,
    /// The runtime cannot report its status after its exit.
    pub unread: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Regular,
    Sidecar,
    Init,
    Ephemeral,
}

#[derive(Debug, Clone, Copy)]
pub enum Hook {
    None,
    /// Its duration and exit code.
    Exec(Duration, i32),
    Sleep(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Running,
    Exited(i32),
    Unknown,
    Created,
    /// Running, after an instance that has exited.
    Restarted,
}

// === impl PodPlan ===

impl PodPlan {
    pub fn any(dice: &mut Dice) -> Self {
        let kind = match dice.up_to(10) {
            0 => Kind::Mirror,
            1 => Kind::Terminal,
            _ => Kind::Plain,
        };
        let containers = (0..1 + dice.up_to(3)).map(|_| ContainerPlan::any(dice, kind)).collect();
        let volume = |dice: &mut Dice| {
            if dice.one_in(2) {
                Volume::Mounted
            } else {
                Volume::Directory
            }
        };
        Self {
            kind,
            grace: if dice.one_in(3) {
                30
            } else {
                i64::try_from(dice.up_to(60)).unwrap()
            },
            finalizer: kind != Kind::Mirror && dice.one_in(8),
            containers,
            old_sandboxes: usize::from(dice.one_in(5)),
            volumes: (0..dice.up_to(3)).map(|_| volume(dice)).collect(),
        }
    }

    /// Containers whose exit status cannot be read.
    pub fn unread(&self) -> impl Iterator<Item = usize> {
        (0..self.containers.len()).filter(|number| self.containers[*number].unread)
    }

    /// Whether the exit code of this container decides the pod's phase.
    pub fn decides(&self, number: usize) -> bool {
        self.containers[number].role == Role::Regular
    }

    /// Whether an exit status that decides the phase cannot be read.
    pub fn ends_unread(&self) -> bool {
        self.kind == Kind::Plain && self.unread().any(|number| self.decides(number))
    }

    /// Its object in the API.
    pub fn object(&self, name: &str, uid: &str) -> Value {
        let container = |(number, plan): (usize, &ContainerPlan)| {
            let mut container = json!({ "name": format!("c{number}"), "image": "registry.test/busybox:1" });
            match plan.hook {
                Hook::None => {}
                Hook::Exec(..) => container["lifecycle"] = json!({ "preStop": { "exec": { "command": ["drain"] } } }),
                Hook::Sleep(seconds) => {
                    container["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": seconds } } });
                }
            }
            if plan.role == Role::Sidecar {
                container["restartPolicy"] = "Always".into();
            }
            container
        };
        let of = |roles: &[Role]| {
            let all = self.containers.iter().enumerate();
            Value::from(
                all.filter(|(_, plan)| roles.contains(&plan.role))
                    .map(container)
                    .collect::<Vec<_>>(),
            )
        };
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "default", "uid": uid },
            "spec": {
                "nodeName": NODE, "terminationGracePeriodSeconds": self.grace,
                "containers": of(&[Role::Regular]),
                "initContainers": of(&[Role::Init, Role::Sidecar]),
                "ephemeralContainers": of(&[Role::Ephemeral]),
            },
            "status": { "phase": "Running", "podIP": "10.88.0.7", "startTime": "2026-01-01T00:00:00Z" },
        });
        for list in ["initContainers", "ephemeralContainers"] {
            if pod["spec"][list] == json!([]) {
                pod["spec"].as_object_mut().unwrap().remove(list);
            }
        }
        if self.finalizer {
            pod["metadata"]["finalizers"] = json!(["example.com/hold"]);
        }
        match self.kind {
            Kind::Plain => {}
            Kind::Terminal => pod["status"]["phase"] = "Succeeded".into(),
            Kind::Mirror => pod["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "static" }),
        }
        pod
    }

    /// Creates it in the runtime.
    pub fn run(&self, name: &str, uid: &str, world: &mut World) {
        let mut pod = world.pod("default", name, uid);
        if self.kind == Kind::Mirror {
            pod = pod.source("file");
        }
        for number in 0..self.old_sandboxes {
            pod = pod.container(&format!("c{number}")).exited(1).sandbox();
            if self.kind == Kind::Mirror {
                pod = pod.source("file");
            }
        }
        for (number, plan) in self.containers.iter().enumerate() {
            let name = format!("c{number}");
            if plan.state == State::Restarted {
                pod = pod.container(&name).exited(2);
            }
            pod = pod.container(&name);
            pod = match plan.state {
                State::Running | State::Restarted => pod,
                State::Exited(code) => pod.exited(code),
                State::Unknown => pod.unknown(),
                State::Created => pod.created(),
            };
            pod = match plan.obeys {
                Some((after, code)) => pod.ends_after_term(after, code),
                None => pod.ignores_term(),
            };
            if let Hook::Exec(takes, code) = plan.hook {
                pod = pod.commands(takes, code, b"");
            }
        }
    }

    /// Creates its files. Returns the mount points.
    pub fn lay_out(&self, name: &str, uid: &str, node: &Path) -> Vec<std::path::PathBuf> {
        let dir = node.join("kubelet/pods").join(uid);
        let mut mounted = Vec::new();
        fs::create_dir_all(dir.join("containers")).unwrap();
        fs::write(dir.join("etc-hosts"), "").unwrap();
        for (number, volume) in self.volumes.iter().enumerate() {
            let path = dir.join(format!("volumes/kubernetes.io~empty-dir/v{number}"));
            fs::create_dir_all(&path).unwrap();
            // Files behind a mount, and symlinks of a container, must stay.
            match volume {
                Volume::Mounted => {
                    fs::write(path.join("data"), "").unwrap();
                    mounted.push(path);
                }
                Volume::Directory => symlink(node.join("outside"), path.join("way-out")).unwrap(),
            }
        }
        fs::create_dir_all(node.join("logs").join(format!("default_{name}_{uid}"))).unwrap();
        fs::create_dir_all(node.join(format!("cgroup/kubepods/besteffort/pod{uid}"))).unwrap();
        mounted
    }
}

// === impl ContainerPlan ===

impl ContainerPlan {
    fn any(dice: &mut Dice, pod: Kind) -> Self {
        let role = [
            Role::Regular,
            Role::Regular,
            Role::Regular,
            Role::Sidecar,
            Role::Init,
            Role::Ephemeral,
        ][dice.up_to(6)];
        let state = match dice.up_to(9) {
            _ if pod == Kind::Terminal || role == Role::Init => State::Exited(0),
            0 => State::Exited(i32::try_from(dice.up_to(3)).unwrap()),
            1 => State::Unknown,
            2 => State::Created,
            3 => State::Restarted,
            _ => State::Running,
        };
        let hook = match dice.up_to(6) {
            _ if matches!(role, Role::Init | Role::Ephemeral) => Hook::None,
            0 => Hook::Exec(dice.millis(40_000), 0),
            1 => Hook::Exec(dice.millis(3_000), i32::try_from(dice.up_to(2)).unwrap()),
            2 => Hook::Sleep(u64::try_from(dice.up_to(20)).unwrap() + 1),
            _ => Hook::None,
        };
        let obeys = match dice.up_to(4) {
            0 => None,
            1 => Some((Duration::ZERO, 0)),
            _ => Some((dice.millis(20_000), i32::try_from(dice.up_to(3)).unwrap())),
        };
        Self {
            role,
            hook,
            state,
            obeys,
            unread: false,
        }
    }
}
