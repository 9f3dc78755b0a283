//! The true state of the simulated node and cluster, and all effects on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use testbed::scripted_cri::{SimContainer, SimState, World};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::plan::{CallFault, ReadFault};

/// Clones share the state.
#[derive(Clone)]
pub struct State(Arc<Mutex<Known>>);

pub struct Known {
    begun: Instant,
    pub node: PathBuf,
    /// One line per action and effect.
    pub trace: Vec<String>,
    /// The first broken invariant.
    pub broken: Option<String>,
    /// Pods by UID.
    pub pods: BTreeMap<String, PodHistory>,
    mounts: Vec<(u64, PathBuf)>,
    mounted: u64,
    /// Processes in `/proc` and the cgroups: each container's, unless only its children are left.
    shown: BTreeMap<String, (Option<i32>, PathBuf)>,
    processes: i32,
    /// Containers with orphaned child processes.
    pub children: BTreeSet<String>,
    /// Containers whose exit status cannot be read, as UID and name.
    pub unread: BTreeSet<(String, String)>,
    /// Planned faults that have occurred.
    pub met: Met,
    pub agent: Agent,
    pub faults: Faults,
    /// Since when a kubelet runs.
    pub kubelet: Option<Instant>,
    /// Since when the agent reaches another cluster.
    pub mismatch_since: Option<Instant>,
    /// Cuts open connections and calls.
    pub wire: CancellationToken,
    pub line: CancellationToken,
}

/// The present run of the agent.
#[derive(Default)]
pub struct Agent {
    /// Counted from 1. Ended runs reach nothing.
    pub run: u64,
    /// Effects until it crashes.
    pub dies_in: Option<usize>,
    pub died: Arc<Notify>,
}

/// Runtime faults that have occurred.
#[derive(Debug, Default, Clone, Copy)]
pub struct Met {
    /// The shim of a running container died.
    pub shim_died: bool,
    /// The agent has overruled the runtime.
    pub concluded: bool,
    /// The status of an exited container could not be read.
    pub unread: bool,
}

/// Present faults of the outside.
#[derive(Default)]
pub struct Faults {
    pub api_away: bool,
    pub other_cluster: bool,
    pub runtime_away: bool,
    pub calls: Vec<CallFault>,
    pub reads: Option<ReadFault>,
    pub busy: usize,
}

/// The history of a pod.
#[derive(Default)]
pub struct PodHistory {
    pub name: String,
    pub is_static: bool,
    pub terminal: bool,
    pub spec_grace: Duration,
    /// Requests to terminate it, in order; `None` for rejected ones.
    pub asks: Vec<Option<Ask>>,
    pub deleted: bool,
    /// The agent has accepted a stop request.
    pub granted: bool,
    /// A kubelet has started since. The agent cancels the request if it detects it; a later termination is a new one.
    pub perhaps_canceled: bool,
    pub finalizer: bool,
    /// Its object was deleted by another client during this run of the agent.
    pub vanished: Option<u64>,
    /// This run of the agent requested a list with it; the response may be lost.
    pub listing: u64,
    /// This run of the agent has processed a list with it.
    pub listed: u64,
    /// The node has rebooted since its termination was requested.
    pub rebooted: bool,
    /// The agent's deadline according to its calls.
    pub deadline: Option<Instant>,
    /// A shim of it has died.
    pub shim_died: bool,
    /// An exit status that decides the phase cannot be known.
    pub end_unknown: bool,
    /// By container id.
    pub hooks: BTreeMap<String, HookFate>,
    /// The final delete was accepted.
    pub object_deleted: bool,
    /// That is not recorded, and the next run of the agent cannot find out.
    pub lost: bool,
}

/// A request to terminate a pod.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    pub at: Instant,
    pub grace: Duration,
    pub by: Asker,
}

/// Origin of a request to terminate a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// Its terminal phase; the grace period is that of its spec.
    ItsPhase,
    /// A deletion in the API.
    Api,
    /// A stop request on the node.
    Node,
}

/// An exec hook.
#[derive(Default)]
pub struct HookFate {
    /// This run of the agent has received its result.
    pub answered: Option<u64>,
    /// Its completion is recorded.
    pub recorded: bool,
}

// === impl State ===

impl State {
    pub fn new(node: &Path) -> Self {
        let known = Known {
            begun: Instant::now(),
            node: node.to_owned(),
            trace: Vec::new(),
            broken: None,
            pods: BTreeMap::new(),
            mounts: Vec::new(),
            mounted: 100,
            shown: BTreeMap::new(),
            processes: 1_000,
            children: BTreeSet::new(),
            unread: BTreeSet::new(),
            met: Met::default(),
            agent: Agent::default(),
            faults: Faults::default(),
            kubelet: None,
            mismatch_since: None,
            wire: CancellationToken::new(),
            line: CancellationToken::new(),
        };
        known.write_mounts();
        Self(Arc::new(Mutex::new(known)))
    }

    pub fn now(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Known ===

impl Known {
    pub fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    pub fn log(&mut self, what: impl std::fmt::Display) {
        let at = self.age();
        self.trace.push(format!("{:>9.3} {what}", at.as_secs_f64()));
    }

    /// Records a broken invariant; only the first one counts.
    pub fn broken(&mut self, number: u8, what: impl std::fmt::Display) {
        self.log(format_args!("BROKEN {number}: {what}"));
        let at = self.age();
        self.broken
            .get_or_insert_with(|| format!("invariant {number} at {:.3} s: {what}", at.as_secs_f64()));
    }

    // --- the mount table ---

    pub fn mount(&mut self, path: PathBuf) {
        self.mounted += 1;
        self.mounts.push((self.mounted, path));
        self.write_mounts();
    }

    /// Unmounts as the kernel would, while this container of the pod runs.
    pub fn unmount(&mut self, path: &Path, runs: Option<&str>) -> nix::Result<()> {
        let Some(at) = self.mounts.iter().rposition(|(_, mounted)| mounted == path) else {
            return Err(nix::errno::Errno::EINVAL);
        };
        self.log(format_args!("unmount {}", self.short(path)));
        self.effect("an unmount");
        if self.faults.busy > 0 {
            self.faults.busy -= 1;
            return Err(nix::errno::Errno::EBUSY);
        }
        let uid = self.uid_of(path);
        if !self.pods.get(&uid).is_some_and(PodHistory::ends) {
            self.broken(
                2,
                format_args!("a volume of {uid}, which must not terminate, is unmounted"),
            );
        }
        if let Some(runs) = runs {
            self.broken(1, format_args!("a volume of {uid} is unmounted while {runs} runs"));
        }
        self.check_contents(at);
        let (_, path) = self.mounts.remove(at);
        fs::remove_file(path.join("data")).ok();
        self.write_mounts();
        Ok(())
    }

    fn check_contents(&mut self, at: usize) {
        let path = self.mounts[at].1.clone();
        if !path.join("data").exists() {
            self.broken(6, format_args!("data behind the mount {} is lost", self.short(&path)));
        }
    }

    /// Checks that files outside of terminating pods and behind mounts still exist.
    pub fn check_files(&mut self) {
        for at in 0..self.mounts.len() {
            self.check_contents(at);
        }
        if !self.node.join("outside/keep").exists() {
            self.broken(6, "a file outside of all pods is lost");
        }
        let living: Vec<_> = self
            .pods
            .iter()
            .filter(|(_, history)| !history.ends())
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in living {
            if !self.node.join("kubelet/pods").join(&uid).join("etc-hosts").exists() {
                self.broken(6, format_args!("files of {uid}, which must not terminate, are lost"));
            }
        }
    }

    /// Whether the pod has a mount.
    pub fn holds_mount(&self, uid: &str) -> bool {
        self.mounts.iter().any(|(_, path)| self.uid_of(path) == uid)
    }

    pub fn unmount_everything(&mut self) {
        for (_, path) in std::mem::take(&mut self.mounts) {
            fs::remove_file(path.join("data")).ok();
        }
        self.write_mounts();
    }

    /// UID of the pod that a volume belongs to.
    pub fn uid_of(&self, path: &Path) -> String {
        let below = path.strip_prefix(self.node.join("kubelet/pods")).ok();
        let uid = below.and_then(|below| below.components().next());
        uid.map(|uid| uid.as_os_str().to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    fn short(&self, path: &Path) -> String {
        path.strip_prefix(&self.node).unwrap_or(path).display().to_string()
    }

    fn write_mounts(&self) {
        let mut table = format!("31 1 0:27 / {}/cgroup rw - cgroup2 cgroup2 rw\n", self.node.display());
        for (id, path) in &self.mounts {
            // Writing to a String cannot fail.
            let _ = writeln!(table, "{id} 1 0:{id} / {} rw - tmpfs tmpfs rw", path.display());
        }
        fs::write(self.node.join("mountinfo"), table).unwrap();
    }

    // --- processes ---

    /// A PID that no container has had.
    pub fn new_process(&mut self) -> i32 {
        self.processes += 1;
        self.processes
    }

    /// Whether a process of this container exists. If the runtime reports no PIDs, its state counts.
    pub fn runs(&self, it: &SimContainer) -> bool {
        is_alive(it.state) && (!it.shim_died || it.pid.is_none() || self.children.contains(&it.id))
    }

    /// Writes the running processes to `/proc` and the cgroups.
    pub fn show_processes(&mut self, world: &World) {
        let mut now = BTreeMap::new();
        for it in world.containers.values() {
            if let Some(pid) = it.pid
                && self.runs(it)
            {
                let cgroup = self
                    .node
                    .join(format!("cgroup/kubepods/besteffort/pod{}/{}", it.pod_uid, it.id));
                now.insert(it.id.clone(), (Some(pid).filter(|_| !it.shim_died), cgroup));
            }
        }
        if now == self.shown {
            return;
        }
        let proc = self.node.join("proc");
        for (id, (pid, cgroup)) in &self.shown {
            let left = now.get(id);
            if let Some(pid) = pid
                && left.is_none_or(|(left, _)| left.is_none())
            {
                fs::remove_file(proc.join(format!("{pid}/stat"))).unwrap();
                fs::remove_dir(proc.join(pid.to_string())).unwrap();
            }
            if left.is_none() {
                fs::remove_file(cgroup.join("cgroup.procs")).unwrap();
                fs::remove_dir(cgroup).unwrap();
            }
        }
        for (id, (pid, cgroup)) in &now {
            if self.shown.contains_key(id) {
                continue;
            }
            fs::create_dir_all(cgroup).unwrap();
            // Outside of the PID range: no real process must be killed.
            fs::write(cgroup.join("cgroup.procs"), "0\n").unwrap();
            if let Some(pid) = pid {
                let dir = proc.join(pid.to_string());
                fs::create_dir_all(&dir).unwrap();
                // Started 50 s after boot: older than all containers.
                let stat = format!("{pid} (main) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5000 0 0\n");
                fs::write(dir.join("stat"), stat).unwrap();
            }
        }
        self.shown = now;
    }

    /// The agent has ended while its disk was full: the next run cannot know its last effects.
    pub fn forget(&mut self) {
        self.log("the agent has lost what the full disk rejected");
        for history in self.pods.values_mut() {
            history.deadline = None;
            history.lost |= history.object_deleted;
            history.hooks.values_mut().for_each(|hook| hook.recorded = false);
        }
    }

    // --- checks of every effect ---

    /// Checks that the agent may act at all.
    pub fn effect(&mut self, what: &str) {
        const LOOKS_EVERY: Duration = Duration::from_millis(1_010);
        if let Some(since) = self.kubelet
            && since.elapsed() > LOOKS_EVERY
        {
            self.broken(
                9,
                format_args!("{what} although a kubelet is here since {:?}", since.elapsed()),
            );
        }
        if let Some(since) = self.mismatch_since
            && since.elapsed() > Duration::from_millis(1)
        {
            self.broken(
                7,
                format_args!("{what} although another cluster was seen {:?} ago", since.elapsed()),
            );
        }
        if let Some(left) = &mut self.agent.dies_in {
            if *left == 0 {
                self.agent.dies_in = None;
                self.agent.died.notify_one();
            } else {
                *left -= 1;
            }
        }
    }
}

/// Whether the runtime shows the container as running.
pub fn is_alive(state: SimState) -> bool {
    matches!(state, SimState::Running | SimState::Unknown)
}

// === impl PodHistory ===

impl PodHistory {
    /// A kubelet has started: a pod that was only stopped on the node may run again. The agent may not know of an earlier
    /// deletion.
    pub fn kubelet_starts(&mut self) {
        if self.killed() && !self.terminal {
            self.perhaps_canceled = true;
            self.granted &= self.deleted || self.vanished.is_some();
        }
    }

    /// Whether its termination was requested.
    pub fn ends(&self) -> bool {
        !self.is_static && (self.deleted || self.killed() || self.vanished.is_some() || self.terminal)
    }

    /// Adds a request with this grace period, and returns its index.
    pub fn ask(&mut self, by: Asker, grace: Duration) -> usize {
        let grace = grace.max(Duration::from_secs(1));
        let at = Instant::now();
        self.asks.push(Some(Ask { at, grace, by }));
        self.asks.len() - 1
    }

    /// The grace period that the API server sets for a DELETE. It counts from the whole second in which the deletion began: if
    /// that period is over, one second is left.
    pub fn set_by_api(&self, asked: Duration) -> Duration {
        let second = Duration::from_secs(1);
        let first = self.standing().find(|ask| ask.by == Asker::Api);
        let is_over = first.is_some_and(|first| first.at + asked < Instant::now() + second);
        if is_over { asked.min(second) } else { asked }
    }

    /// The agent has rejected this request. The others stay.
    pub fn refuse(&mut self, ask: usize) {
        self.asks[ask] = None;
    }

    /// Whether it was stopped on the node, and perhaps accepted.
    pub fn killed(&self) -> bool {
        self.standing().any(|ask| ask.by == Asker::Node)
    }

    fn standing(&self) -> impl Iterator<Item = &Ask> {
        self.asks.iter().flatten()
    }

    /// Earliest time of a SIGKILL.
    pub fn earliest_kill(&self) -> Option<Instant> {
        let first = self.standing().next()?;
        let requested = self.standing().filter(|ask| ask.by != Asker::ItsPhase);
        let grace = requested.map(|ask| ask.grace).min().unwrap_or(first.grace);
        (!self.rebooted).then_some(first.at + grace)
    }
}
