//! The state behind the scripted CRI, and its changes over time.

use std::time::Duration;

use indexmap::IndexMap;
use tokio::time::Instant;

use super::pod::PodBuilder;

/// The runtime's wall clock when the world begins: 2026-01-01T00:00:00Z, in nanoseconds.
const BEGINNING: i64 = 1_767_225_600_000_000_000;

/// Exit code of a process that SIGKILL ended.
const KILLED: i32 = 137;

/// containerd's exit code of a container whose exit it has not seen.
const UNKNOWN_EXIT: i32 = 255;

/// Which runtime is imitated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Manners {
    /// containerd 1.6.
    #[default]
    Containerd,
    /// CRI-O 1.37.
    CriO,
}

/// Sandboxes and containers of one runtime, on the virtual clock.
#[derive(Debug)]
pub struct World {
    begun: Instant,
    /// Whose manners it has.
    pub manners: Manners,
    /// Name and version that the runtime gives.
    pub runtime: (String, String),
    /// `Some(true)` for systemd; `None` for a runtime that does not implement the call, such as containerd 1.6.
    pub systemd_cgroups: Option<bool>,
    /// Sends container events; containerd 1.6 does not implement the call.
    pub sends_events: bool,
    /// Refuses lists larger than this number of bytes.
    pub largest_list: usize,
    /// By id, oldest first.
    pub sandboxes: IndexMap<String, SimSandbox>,
    /// By id, oldest first.
    pub containers: IndexMap<String, SimContainer>,
}

#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "fields of the CRI message")]
pub struct SimSandbox {
    pub id: String,
    pub pod_uid: String,
    pub namespace: String,
    pub pod_name: String,
    pub attempt: u32,
    pub ready: bool,
    pub created_at: i64,
    pub ips: Vec<String>,
    pub annotations: Vec<(String, String)>,
    pub cgroup_parent: String,
    /// CRI-O: it was incomplete when CRI-O restarted. It is not listed, and its status is an error.
    pub half_made: bool,
    /// Its process, as a verbose status of containerd reports it; `None` if it has none.
    pub pid: Option<i32>,
    /// CRI-O: error of its network teardown, once; after that it counts as done.
    pub network_error: Option<String>,
}

/// A container of the world.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "fields of the CRI message")]
pub struct SimContainer {
    pub id: String,
    pub sandbox_id: String,
    pub pod_uid: String,
    pub name: String,
    pub attempt: u32,
    pub state: SimState,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    pub reason: String,
    pub message: String,
    pub image: String,
    pub log_path: String,
    pub annotations: Vec<(String, String)>,
    /// Container path and host path.
    pub mounts: Vec<(String, String)>,
    pub on_term: OnTerm,
    pub on_exec: OnExec,
    /// When and how its process exits by itself.
    pub ending: Option<(Instant, i32)>,
    /// The stop signal is sent once in a container's life.
    pub signalled: bool,
    /// Its first process, as a verbose status reports it.
    pub pid: Option<i32>,
    /// Its shim has died, so its exit is not reported: see [`World::kill_shim`].
    pub shim_died: bool,
    /// CRI-O: when it kills the container, for each waiting caller.
    pub kill_at: Option<Instant>,
    /// CRI-O: the caller of its stop has canceled. Another stop has no answer.
    pub abandoned: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the CRI states")]
pub enum SimState {
    Created,
    Running,
    Exited,
    Unknown,
}

/// A container's reaction to its stop signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTerm {
    /// Ends after this time with this exit code.
    End(Duration, i32),
    /// Nothing.
    Ignore,
}

/// How a command in a container exits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnExec {
    /// How long it runs.
    pub takes: Duration,
    pub exit_code: i32,
    /// What it prints.
    pub stdout: Vec<u8>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            manners: Manners::default(),
            runtime: ("containerd".to_owned(), "1.6.20".to_owned()),
            systemd_cgroups: None,
            sends_events: false,
            largest_list: usize::MAX,
            sandboxes: IndexMap::new(),
            containers: IndexMap::new(),
        }
    }
}

impl World {
    /// An empty world at its start.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty world of this runtime.
    pub fn with(manners: Manners) -> Self {
        let containerd = Self::default();
        match manners {
            Manners::Containerd => containerd,
            Manners::CriO => Self {
                manners,
                runtime: ("cri-o".to_owned(), "1.37.0".to_owned()),
                systemd_cgroups: Some(false),
                ..containerd
            },
        }
    }

    /// Adds a pod as a kubelet would: a ready sandbox, and the containers named afterwards.
    pub fn pod(&mut self, namespace: &str, name: &str, uid: &str) -> PodBuilder<'_> {
        PodBuilder::new(self, namespace, name, uid)
    }

    /// The newest container with this name, or the one with this id.
    pub fn container(&self, name_or_id: &str) -> Option<&SimContainer> {
        self.containers
            .get(name_or_id)
            .or_else(|| self.containers.values().rev().find(|c| c.name == name_or_id))
    }

    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// The runtime's wall clock, in nanoseconds.
    pub(super) fn wall_clock(&self, at: Instant) -> i64 {
        let since = at.saturating_duration_since(self.begun).as_nanos();
        BEGINNING.saturating_add(i64::try_from(since).unwrap_or(i64::MAX))
    }

    /// Time since the start of the world.
    pub(super) fn age(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.begun)
    }

    /// Exits all processes that are due.
    pub(super) fn settle(&mut self, now: Instant) {
        let killed = |c: &SimContainer| Some((c.kill_at.filter(|_| self.runs(&c.id))?, KILLED));
        let due = |c: &SimContainer| {
            if c.shim_died {
                return None;
            }
            let ends = [c.ending, killed(c)].into_iter().flatten();
            ends.min_by_key(|(at, _)| *at).filter(|(at, _)| *at <= now)
        };
        let due: Vec<_> = self
            .containers
            .values()
            .filter_map(|c| due(c).map(|end| (c.id.clone(), end)))
            .collect();
        for (id, (at, code)) in due {
            self.end(&id, at, code);
        }
    }

    /// Whether it runs, as the runtime reports it.
    pub(super) fn runs(&self, id: &str) -> bool {
        self.containers
            .get(id)
            .is_some_and(|c| matches!(c.state, SimState::Running | SimState::Unknown))
    }

    /// Sends the stop signal, unless it was sent before.
    pub(super) fn signal(&mut self, id: &str, now: Instant) {
        if !self.runs(id) {
            return;
        }
        let takes_signal = |c: &&mut SimContainer| !c.signalled && !c.shim_died;
        let Some(container) = self.containers.get_mut(id).filter(takes_signal) else {
            return;
        };
        container.signalled = true;
        if let OnTerm::End(after, code) = container.on_term {
            let sooner = container.ending.filter(|(at, _)| *at <= now + after);
            container.ending = Some(sooner.unwrap_or((now + after, code)));
        }
        self.settle(now);
    }

    /// Sends SIGKILL.
    pub(super) fn kill(&mut self, id: &str, now: Instant) {
        if self.runs(id) && !self.has_lost_shim(id) {
            self.end(id, now, KILLED);
        }
    }

    /// The shim of a running container dies, and so do its processes. The runtime still reports the container as running,
    /// and can neither stop nor remove it until it is restarted.
    pub fn kill_shim(&mut self, id: &str) {
        if self.runs(id)
            && let Some(container) = self.containers.get_mut(id)
        {
            container.shim_died = true;
            (container.ending, container.kill_at) = (None, None);
        }
    }

    /// The runtime restarts, and notices dead shims. A shim of containerd is also that of the sandbox; a sandbox of CRI-O
    /// needs no process, and is ready until it is stopped.
    pub fn restart_runtime(&mut self, now: Instant) {
        let lost = self.containers.values().filter(|c| c.shim_died);
        let lost: Vec<_> = lost.map(|c| (c.id.clone(), c.sandbox_id.clone())).collect();
        for (id, sandbox_id) in lost {
            self.end(&id, now, UNKNOWN_EXIT);
            if let Some(container) = self.containers.get_mut(&id) {
                container.shim_died = false;
                "Unknown".clone_into(&mut container.reason);
            }
            if self.manners == Manners::Containerd
                && let Some(sandbox) = self.sandboxes.get_mut(&sandbox_id)
            {
                sandbox.ready = false;
            }
        }
    }

    /// Whether it is reported as running although its shim has died.
    pub(super) fn has_lost_shim(&self, id: &str) -> bool {
        self.containers.get(id).is_some_and(|c| c.shim_died)
    }

    /// Schedules the exit of a running container.
    pub fn will_end(&mut self, name_or_id: &str, at: Instant, exit_code: i32) {
        let id = self.container(name_or_id).map(|c| c.id.clone());
        if let Some(container) = id.and_then(|id| self.containers.get_mut(&id)) {
            container.ending = Some((at, exit_code));
        }
    }

    fn end(&mut self, id: &str, at: Instant, code: i32) {
        let finished_at = self.wall_clock(at);
        if let Some(container) = self.containers.get_mut(id) {
            container.state = SimState::Exited;
            (container.ending, container.kill_at) = (None, None);
            container.finished_at = finished_at;
            container.exit_code = code;
            container.reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
        }
    }

    /// As CRI-O: an earlier stop continues, and a later one only shortens it. Returns whether a caller waits for an
    /// earlier one.
    pub(super) fn stop_by(&mut self, id: &str, kill_at: Instant, now: Instant) -> bool {
        if !self.runs(id) {
            return true;
        }
        self.signal(id, now);
        let Some(container) = self.containers.get_mut(id) else {
            return true;
        };
        if !container.shim_died {
            container.kill_at = Some(container.kill_at.map_or(kill_at, |earlier| earlier.min(kill_at)));
        }
        !container.abandoned
    }

    pub(super) fn stop_sandbox(&mut self, id: &str, now: Instant) {
        for container in self.inside(id) {
            self.kill(&container, now);
        }
        if let Some(sandbox) = self.sandboxes.get_mut(id) {
            sandbox.ready = false;
        }
    }

    /// The first container that blocks the stop of a sandbox, or its own.
    pub(super) fn in_the_way(&self, id: &str) -> Option<&SimContainer> {
        self.containers
            .values()
            .find(|c| (c.id == id || c.sandbox_id == id) && c.shim_died)
    }

    pub(super) fn remove_container(&mut self, id: &str) {
        self.containers.shift_remove(id);
    }

    pub(super) fn remove_sandbox(&mut self, id: &str) {
        for container in self.inside(id) {
            self.remove_container(&container);
        }
        self.sandboxes.shift_remove(id);
    }

    pub(super) fn inside(&self, sandbox_id: &str) -> Vec<String> {
        self.containers
            .values()
            .filter(|c| c.sandbox_id == sandbox_id)
            .map(|c| c.id.clone())
            .collect()
    }
}
