//! What the simulation knows that the agent does not: the world as it is, and what was done in it.

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

use crate::plan::{CallTrouble, LookTrouble};

/// All of it; clones are the same one.
#[derive(Clone)]
pub struct State(Arc<Mutex<Known>>);

pub struct Known {
    begun: Instant,
    pub node: PathBuf,
    /// What happened, a line each.
    pub trace: Vec<String>,
    /// The first that should not have happened.
    pub broken: Option<String>,
    /// By UID.
    pub pods: BTreeMap<String, Fate>,
    mounts: Vec<(u64, PathBuf)>,
    mounted: u64,
    /// What `/proc` and the cgroups show of each container: its process, unless only its children are left.
    shown: BTreeMap<String, (Option<i32>, PathBuf)>,
    processes: i32,
    /// Containers whose children have outlived them.
    pub children: BTreeSet<String>,
    /// Containers whose end cannot be read, as UID and name.
    pub unread: BTreeSet<(String, String)>,
    /// What was drawn and came about.
    pub met: Met,
    pub agent: Agent,
    pub trouble: Trouble,
    /// Since when a kubelet is there.
    pub kubelet: Option<Instant>,
    /// Since when the agent has seen another cluster.
    pub wrong_world: Option<Instant>,
    /// What ends connections and calls that are under way.
    pub wire: CancellationToken,
    pub line: CancellationToken,
}

/// The agent's run.
#[derive(Default)]
pub struct Agent {
    /// Counted from 1; a run that has ended reaches nothing any more.
    pub run: u64,
    /// It ends at its next but so many effects.
    pub dies_in: Option<usize>,
    pub died: Arc<Notify>,
}

/// Faults of the runtime that a run has met.
#[derive(Debug, Default, Clone, Copy)]
pub struct Met {
    /// The shim of a running container died.
    pub shim_died: bool,
    /// The agent has concluded that the runtime is wrong.
    pub concluded: bool,
    /// The status of a container that has ended was asked for in vain.
    pub unread: bool,
}

/// What is wrong with the outside.
#[derive(Default)]
pub struct Trouble {
    pub api_away: bool,
    pub other_cluster: bool,
    pub runtime_away: bool,
    pub calls: Vec<CallTrouble>,
    pub looks: Option<LookTrouble>,
    pub busy: usize,
}

/// What becomes of a pod.
#[derive(Default)]
pub struct Fate {
    pub name: String,
    pub is_static: bool,
    pub terminal: bool,
    pub spec_grace: Duration,
    /// Who asked for its end, in this order; `None` where the agent has refused.
    pub asks: Vec<Option<Ask>>,
    pub deleted: bool,
    /// The agent has promised it.
    pub granted: bool,
    /// A kubelet has come since, for which the agent gives the request up if it sees it in time: another end begins anew.
    pub perhaps_given_up: bool,
    pub finalizer: bool,
    /// Its object went without the agent, in this run of it.
    pub vanished: Option<u64>,
    /// It was in a list in this run of the agent, which may not have come there.
    pub listing: u64,
    /// It was in a list of which the agent has made something since, in this run of it.
    pub listed: u64,
    /// The machine was started anew since its end was asked for.
    pub rebooted: bool,
    /// The agent's own deadline, as far as its calls tell.
    pub deadline: Option<Instant>,
    /// A shim of it has died.
    pub shim_died: bool,
    /// How a container that decides on the phase has ended, nobody can know.
    pub end_unknown: bool,
    /// By container id.
    pub hooks: BTreeMap<String, HookFate>,
    /// The final delete was accepted.
    pub let_go: bool,
    /// That it was is not on the disk, and nobody will tell it to the next run of the agent.
    pub lost: bool,
}

/// A pod was asked to end.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    pub at: Instant,
    pub grace: Duration,
    pub by: Asker,
}

/// Who asks for a pod's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// Nobody: it has ended, and its spec says how long that may take.
    ItsPhase,
    /// Somebody at the API server.
    Api,
    /// Somebody on the node.
    Node,
}

/// A hook that is a command.
#[derive(Default)]
pub struct HookFate {
    /// It was answered, in this run of the agent.
    pub answered: Option<u64>,
    /// Its end is on the disk.
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
            trouble: Trouble::default(),
            kubelet: None,
            wrong_world: None,
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

    pub fn tell(&mut self, what: impl std::fmt::Display) {
        let at = self.age();
        self.trace.push(format!("{:>9.3} {what}", at.as_secs_f64()));
    }

    /// An invariant is broken; the first one counts.
    pub fn broken(&mut self, number: u8, what: impl std::fmt::Display) {
        self.tell(format_args!("BROKEN {number}: {what}"));
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

    /// What the kernel would do about an unmount, while this container of the pod runs.
    pub fn unmount(&mut self, path: &Path, runs: Option<&str>) -> nix::Result<()> {
        let Some(at) = self.mounts.iter().rposition(|(_, mounted)| mounted == path) else {
            return Err(nix::errno::Errno::EINVAL);
        };
        self.tell(format_args!("unmount {}", self.short(path)));
        self.effect("an unmount");
        if self.trouble.busy > 0 {
            self.trouble.busy -= 1;
            return Err(nix::errno::Errno::EBUSY);
        }
        let uid = self.uid_of(path);
        if !self.pods.get(&uid).is_some_and(Fate::ends) {
            self.broken(
                2,
                format_args!("a volume of {uid} is unmounted, which nobody wants to end"),
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
            self.broken(6, format_args!("data behind the mount {} is gone", self.short(&path)));
        }
    }

    /// What lies outside of pods that end, and behind mounts, is there.
    pub fn check_files(&mut self) {
        for at in 0..self.mounts.len() {
            self.check_contents(at);
        }
        if !self.node.join("outside/keep").exists() {
            self.broken(6, "a file outside of all pods is gone");
        }
        let living: Vec<_> = self
            .pods
            .iter()
            .filter(|(_, fate)| !fate.ends())
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in living {
            if !self.node.join("kubelet/pods").join(&uid).join("etc-hosts").exists() {
                self.broken(6, format_args!("files of {uid} are gone, which nobody wants to end"));
            }
        }
    }

    /// Whether something of the pod is mounted.
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

    /// A process id that no container has had.
    pub fn new_process(&mut self) -> i32 {
        self.processes += 1;
        self.processes
    }

    /// Whether the kernel has a process of this container. Where the runtime names none, its word stands.
    pub fn runs(&self, it: &SimContainer) -> bool {
        lives(it.state) && (!it.shim_died || it.pid.is_none() || self.children.contains(&it.id))
    }

    /// Shows in `/proc` and in the cgroups what runs, and nothing else.
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
            // One of another pid namespace: nobody must be killed by what is written here.
            fs::write(cgroup.join("cgroup.procs"), "0\n").unwrap();
            if let Some(pid) = pid {
                let dir = proc.join(pid.to_string());
                fs::create_dir_all(&dir).unwrap();
                // Older than all that is looked at: it started 50 s after boot.
                let stat = format!("{pid} (main) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5000 0 0\n");
                fs::write(dir.join("stat"), stat).unwrap();
            }
        }
        self.shown = now;
    }

    /// The agent has ended while its disk took nothing: the next one cannot know what this one did last.
    pub fn forget(&mut self) {
        self.tell("the agent has lost what the disk did not take");
        for fate in self.pods.values_mut() {
            fate.deadline = None;
            fate.lost |= fate.let_go;
            fate.hooks.values_mut().for_each(|hook| hook.recorded = false);
        }
    }

    // --- what holds for every effect ---

    /// An effect has come from the agent: may it act at all?
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
        if let Some(since) = self.wrong_world
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

/// Whether it runs by the runtime's word.
pub fn lives(state: SimState) -> bool {
    matches!(state, SimState::Running | SimState::Unknown)
}

// === impl Fate ===

impl Fate {
    /// A kubelet has come: whoever only somebody on the node wanted to end may be that one's again. That it was deleted before
    /// that the agent may not have heard.
    pub fn kubelet_comes(&mut self) {
        if self.killed() && !self.terminal {
            self.perhaps_given_up = true;
            self.granted &= self.deleted || self.vanished.is_some();
        }
    }

    /// Whether somebody wants it to end.
    pub fn ends(&self) -> bool {
        !self.is_static && (self.deleted || self.killed() || self.vanished.is_some() || self.terminal)
    }

    /// It is asked to end, within this time. Returns which ask that is.
    pub fn ask(&mut self, by: Asker, grace: Duration) -> usize {
        let grace = grace.max(Duration::from_secs(1));
        let at = Instant::now();
        self.asks.push(Some(Ask { at, grace, by }));
        self.asks.len() - 1
    }

    /// The agent has refused that one. What was asked before and since stands.
    pub fn refuse(&mut self, ask: usize) {
        self.asks[ask] = None;
    }

    /// Whether its end was asked for on the node, and perhaps granted.
    pub fn killed(&self) -> bool {
        self.standing().any(|ask| ask.by == Asker::Node)
    }

    fn standing(&self) -> impl Iterator<Item = &Ask> {
        self.asks.iter().flatten()
    }

    /// Before this nobody may kill it.
    pub fn earliest_kill(&self) -> Option<Instant> {
        let first = self.standing().next()?;
        let of_somebody = self.standing().filter(|ask| ask.by != Asker::ItsPhase);
        let grace = of_somebody.map(|ask| ask.grace).min().unwrap_or(first.grace);
        (!self.rebooted).then_some(first.at + grace)
    }
}
