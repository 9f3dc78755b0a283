//! The simulated agent: start, crash, stop, restart.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::{Args as _, FromArgMatches as _};
use jiff::Timestamp;
use pod_teardown::{
    agent::pods::PodAgent,
    cli::NodeFlags,
    clock::{BootClock, WallClock},
    config::PodSettings,
    model::problem::Problem,
    node::{host::Host, kubelet_root::KubeletRoot},
    ops::admin::PodsAdmin,
    outside::Outside,
};
use std::sync::{
    Mutex,
    atomic::{AtomicI64, Ordering},
};
use tokio::{sync::oneshot, task::JoinHandle, time::Instant};

use crate::pods::NODE;

/// Shutdown timeout.
const SHUTDOWN: Duration = Duration::from_secs(20);

/// The node of the agent.
pub struct Machine {
    pub node: PathBuf,
    boot: u32,
    booted: Instant,
    born: Instant,
    /// Makes all wall-clock times unique, though the clock is paused while tasks run.
    ticks: Arc<AtomicI64>,
}

/// A run of the agent.
pub struct Running {
    task: JoinHandle<Result<(), Problem>>,
    stop: oneshot::Sender<()>,
    pub answers: Arc<Mutex<Option<PodsAdmin>>>,
}

// === impl Machine ===

impl Machine {
    pub fn new(node: PathBuf) -> Self {
        let now = Instant::now();
        Self {
            node,
            boot: 1,
            booted: now,
            born: now,
            ticks: Arc::default(),
        }
    }

    pub fn reboot(&mut self) {
        self.boot += 1;
        self.booted = Instant::now();
    }

    fn host(&self) -> Host {
        let (born, booted, ticks) = (self.born, self.booted, Arc::clone(&self.ticks));
        let began = began_at();
        let wall = WallClock::of(move || {
            let more = Duration::from_nanos(ticks.fetch_add(1, Ordering::Relaxed).unsigned_abs());
            began.checked_add(born.elapsed() + more).unwrap_or(began)
        });
        let mut clock = BootClock::of(&format!("boot-{}", self.boot), move || {
            Duration::from_secs(100) + booted.elapsed()
        });
        clock.wall = wall;
        Host {
            sys_block: pod_teardown::node::host::SYS_BLOCK.into(),
            processors: 2,
            root: self.node.join("root"),
            proc: self.node.join("proc"),
            mountinfo: self.node.join("mountinfo"),
            cgroups: self.node.join("cgroup"),
            clock,
        }
    }

    fn settings(&self) -> PodSettings {
        let mut kube = kube::Config::new(http::Uri::from_static("http://api.test"));
        kube.auth_info.token = Some(format!("system:node:{NODE}").into());
        // Without this, each start reads the authorities of the machine, a fifth of a run's time.
        kube.root_cert = Some(Vec::new());
        let run = NodeFlags::augment_args(clap::Command::new("run"));
        let flags = run.get_matches_from(["run", "--node-condition=false"]);
        PodSettings {
            flags: NodeFlags::from_arg_matches(&flags).unwrap(),
            driver_hold: Duration::from_secs(600),
            kube,
            // It does not exist, so it never changes.
            kubeconfig: self.node.join("kubeconfig"),
            cri_endpoint: "unix:///no/such/cri.sock".parse().unwrap(),
            kubelet_root: KubeletRoot::resolve(&self.node.join("kubelet")).unwrap(),
            cgroup_root: "/".to_owned(),
            pod_logs_dir: self.node.join("logs"),
            healthz: None,
            only_observes: false,
            take_over_after: None,
        }
    }

    pub fn start(&self, outside: Outside) -> Running {
        let (stop, stopped) = oneshot::channel();
        let answers = Arc::new(Mutex::new(None));
        let (slot, host, settings, state_dir) = (
            Arc::clone(&answers),
            self.host(),
            self.settings(),
            self.node.join("state"),
        );
        let task = tokio::spawn(async move {
            let pods = PodAgent::new(host, outside, settings, NODE, &state_dir).await?;
            *slot.lock().unwrap() = Some(pods.shared.clone());
            let stopped = async {
                // A dropped sender stops the agent, too.
                stopped.await.ok();
                Ok(())
            };
            tokio::pin!(stopped);
            pods.run(SHUTDOWN, None, &mut stopped).await
        });
        Running { task, stop, answers }
    }
}

/// Wall-clock time at the beginning of a run.
pub fn began_at() -> Timestamp {
    Timestamp::from_second(1_767_225_600).unwrap()
}

// === impl Running ===

impl Running {
    /// Crashes the agent.
    pub async fn crash(self) {
        let Self { task, stop, answers } = self;
        task.abort();
        task.await.ok();
        drop((stop, answers));
    }

    /// Stops the agent, and returns its error.
    pub async fn stop(self) -> Option<String> {
        let Self { task, stop, answers } = self;
        // The admin handle must not outlive the agent.
        drop(answers);
        stop.send(()).ok();
        ended(task.await)
    }

    /// The error if the agent has exited by itself.
    pub async fn ended(&mut self) -> Option<String> {
        if self.task.is_finished() {
            Some(ended((&mut self.task).await).unwrap_or_else(|| "it exited without a stop request".to_owned()))
        } else {
            None
        }
    }
}

fn ended(result: Result<Result<(), Problem>, tokio::task::JoinError>) -> Option<String> {
    match result {
        Ok(Ok(())) => None,
        Ok(Err(problem)) => Some(problem.what),
        Err(error) => Some(error.to_string()),
    }
}
