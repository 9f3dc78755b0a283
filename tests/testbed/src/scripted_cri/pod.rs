//! Pods for the world, marked as a kubelet marks them.

use std::time::Duration;

use super::world::{OnExec, OnTerm, SimContainer, SimSandbox, SimState, World};

/// Keys that a kubelet writes.
pub(super) mod keys {
    pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
    pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
    pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    pub(crate) const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    pub(crate) const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    pub(crate) const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    pub(crate) const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
}

/// How much older than the world the first sandbox is, and how much older each thing is than the one made after it.
const AGE: i64 = 60_000_000_000;
const STEP: i64 = 1_000_000_000;

/// Builds a pod; what is said about a container concerns the one named last.
#[derive(Debug)]
pub struct PodBuilder<'w> {
    world: &'w mut World,
    namespace: String,
    name: String,
    uid: String,
    sandbox_id: String,
    made: i64,
}

impl<'w> PodBuilder<'w> {
    pub(super) fn new(world: &'w mut World, namespace: &str, name: &str, uid: &str) -> Self {
        let builder = Self {
            world,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            sandbox_id: String::new(),
            made: 0,
        };
        builder.sandbox()
    }

    /// Another sandbox, newer than the one before, which is not ready any more. The containers named next live there.
    pub fn sandbox(mut self) -> Self {
        let mut attempt = 0;
        for older in self
            .world
            .sandboxes
            .values_mut()
            .filter(|sandbox| sandbox.pod_uid == self.uid)
        {
            older.ready = false;
            attempt += 1;
        }
        self.sandbox_id = format!("sandbox-{}-{attempt}", self.uid);
        let sandbox = SimSandbox {
            id: self.sandbox_id.clone(),
            pod_uid: self.uid.clone(),
            namespace: self.namespace.clone(),
            pod_name: self.name.clone(),
            attempt,
            ready: true,
            created_at: self.next_creation(),
            ips: vec!["10.88.0.7".to_owned()],
            annotations: vec![(keys::CONFIG_SOURCE.to_owned(), "api".to_owned())],
            cgroup_parent: format!("/kubepods/besteffort/pod{}", self.uid),
            half_made: false,
            pid: None,
            network_error: None,
        };
        self.world.sandboxes.insert(sandbox.id.clone(), sandbox);
        self
    }

    /// A container, running. A name that was given before makes a newer instance of it, with a higher restart count.
    pub fn container(mut self, name: &str) -> Self {
        let of_this = |c: &&SimContainer| c.pod_uid == self.uid && c.name == name;
        let attempt = u32::try_from(self.world.containers.values().filter(of_this).count()).unwrap_or(u32::MAX);
        let created_at = self.next_creation();
        let container = SimContainer {
            id: format!("container-{}-{name}-{attempt}", self.uid),
            sandbox_id: self.sandbox_id.clone(),
            pod_uid: self.uid.clone(),
            name: name.to_owned(),
            attempt,
            state: SimState::Running,
            created_at,
            started_at: created_at + STEP / 10,
            finished_at: 0,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: "registry.test/busybox:1".to_owned(),
            log_path: format!(
                "/var/log/pods/{}_{}_{}/{name}/{attempt}.log",
                self.namespace, self.name, self.uid
            ),
            annotations: vec![(keys::RESTART_COUNT.to_owned(), attempt.to_string())],
            mounts: Vec::new(),
            on_term: OnTerm::End(Duration::ZERO, 0),
            on_exec: OnExec {
                takes: Duration::ZERO,
                exit_code: 0,
                stdout: Vec::new(),
            },
            ending: None,
            signalled: false,
            pid: None,
            shim_died: false,
            kill_at: None,
            abandoned: false,
        };
        self.world.containers.insert(container.id.clone(), container);
        self
    }

    fn next_creation(&mut self) -> i64 {
        self.made += STEP;
        self.world.wall_clock(tokio::time::Instant::now()) - AGE + self.made
    }

    fn with_sandbox(self, change: impl FnOnce(&mut SimSandbox)) -> Self {
        if let Some(sandbox) = self.world.sandboxes.get_mut(&self.sandbox_id) {
            change(sandbox);
        }
        self
    }

    #[track_caller]
    fn with_container(self, change: impl FnOnce(&mut SimContainer)) -> Self {
        let newest = self
            .world
            .containers
            .values_mut()
            .rev()
            .find(|container| container.pod_uid == self.uid);
        change(newest.expect("name a container of the pod first"));
        self
    }

    // --- of the sandbox made last ---

    /// IPs; none for a pod on the host's network.
    pub fn ips(self, ips: &[&str]) -> Self {
        self.with_sandbox(|sandbox| sandbox.ips = ips.iter().map(|&ip| ip.to_owned()).collect())
    }

    /// Where the pod came from: `api`, which is what it is if nothing is said, `file` or `http`.
    pub fn source(self, source: &str) -> Self {
        self.annotation(keys::CONFIG_SOURCE, source)
    }

    pub fn annotation(self, key: &str, value: &str) -> Self {
        self.with_sandbox(|sandbox| {
            sandbox.annotations.retain(|(known, _)| known != key);
            sandbox.annotations.push((key.to_owned(), value.to_owned()));
        })
    }

    /// CRI-O: the sandbox was half made.
    pub fn half_made(self) -> Self {
        self.with_sandbox(|sandbox| sandbox.half_made = true)
    }

    /// CRI-O: the teardown of its network fails so, once.
    pub fn network_fails(self, error: &str) -> Self {
        self.with_sandbox(|sandbox| sandbox.network_error = Some(error.to_owned()))
    }

    /// The runtime names this as the process of the sandbox.
    pub fn sandbox_process(self, pid: i32) -> Self {
        self.with_sandbox(|sandbox| sandbox.pid = Some(pid))
    }

    /// The cgroup that the sandbox was put under.
    pub fn cgroup_parent(self, path: &str) -> Self {
        self.with_sandbox(|sandbox| path.clone_into(&mut sandbox.cgroup_parent))
    }

    // --- of the container named last ---

    /// Made and never started.
    pub fn created(self) -> Self {
        self.with_container(|container| {
            container.state = SimState::Created;
            container.started_at = 0;
        })
    }

    /// Running, which it is if nothing is said.
    pub fn running(self) -> Self {
        self.with_container(|container| container.state = SimState::Running)
    }

    /// Ended some time ago.
    pub fn exited(self, code: i32) -> Self {
        self.with_container(|container| {
            container.state = SimState::Exited;
            container.finished_at = container.started_at + STEP / 10;
            container.exit_code = code;
            container.reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
        })
    }

    /// The runtime names this as its first process.
    pub fn process(self, pid: i32) -> Self {
        self.with_container(|container| container.pid = Some(pid))
    }

    /// In a state that the runtime cannot tell.
    pub fn unknown(self) -> Self {
        self.with_container(|container| container.state = SimState::Unknown)
    }

    /// Does nothing about its stop signal: only SIGKILL ends it.
    pub fn ignores_term(self) -> Self {
        self.with_container(|container| container.on_term = OnTerm::Ignore)
    }

    /// Ends this long after its stop signal, with this exit code.
    pub fn ends_after_term(self, after: Duration, code: i32) -> Self {
        self.with_container(|container| container.on_term = OnTerm::End(after, code))
    }

    /// Commands in it take this long and end so.
    pub fn commands(self, takes: Duration, exit_code: i32, stdout: &[u8]) -> Self {
        self.with_container(|container| {
            container.on_exec = OnExec {
                takes,
                exit_code,
                stdout: stdout.to_vec(),
            }
        })
    }

    pub fn image(self, image: &str) -> Self {
        self.with_container(|container| image.clone_into(&mut container.image))
    }

    /// The runtime's reason and message for its end.
    pub fn because(self, reason: &str, message: &str) -> Self {
        self.with_container(|container| {
            reason.clone_into(&mut container.reason);
            message.clone_into(&mut container.message);
        })
    }

    pub fn mount(self, container_path: &str, host_path: &str) -> Self {
        self.with_container(|container| container.mounts.push((container_path.to_owned(), host_path.to_owned())))
    }

    /// Writes its termination message to a path that is mounted from the host, under a policy.
    pub fn termination_message(self, container_path: &str, host_path: &str, policy: &str) -> Self {
        self.mount(container_path, host_path).with_container(|container| {
            container
                .annotations
                .push((keys::MESSAGE_PATH.to_owned(), container_path.to_owned()));
            container
                .annotations
                .push((keys::MESSAGE_POLICY.to_owned(), policy.to_owned()));
        })
    }
}
