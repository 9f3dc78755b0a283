//! The agent on a thread of its own.

use std::{thread, time::Duration};

use pod_teardown::{
    agent,
    cli::{ModeFlag, NodeFlags, SocketFlag},
    clock::BootClock,
    collector::Mode,
    config,
    node::{
        cri::{Cri, CriEndpoint},
        effects::Effects,
        host::Host,
        unmounts::ForceUnmount,
    },
    outside::Outside,
    workers::artifacts::runtime_pods,
};
use tokio::sync::{mpsc, oneshot};

use super::node::{NODE, Node};

pub struct Agent {
    questions: mpsc::UnboundedSender<Question>,
    stop: oneshot::Sender<()>,
    thread: thread::JoinHandle<()>,
}

enum Question {
    Cpu(oneshot::Sender<Duration>),
    Looks(usize, oneshot::Sender<Vec<f64>>),
}

// === impl Agent ===

impl Agent {
    pub fn start(node: &Node) -> Self {
        let flags = flags(node);
        let host = Host {
            sys_block: pod_teardown::node::host::SYS_BLOCK.into(),
            processors: 2,
            root: node.path("root"),
            proc: node.path("proc"),
            mountinfo: node.path("mountinfo"),
            cgroups: node.path("cgroup"),
            clock: BootClock::new().unwrap(),
        };
        let endpoint: CriEndpoint = node.endpoint().parse().unwrap();
        let (stop, stopped) = oneshot::channel();
        let (questions, mut asked) = mpsc::unbounded_channel();
        let work = async move {
            let settings = config::validate(&flags).await.unwrap();
            let answers = async {
                while let Some(question) = asked.recv().await {
                    match question {
                        Question::Cpu(answer) => answer.send(cpu()).unwrap(),
                        Question::Looks(rounds, answer) => answer.send(looks(&endpoint, rounds).await).unwrap(),
                    }
                }
                std::future::pending::<()>().await;
            };
            let stopped = async {
                stopped.await.ok();
            };
            tokio::select! {
                ended = agent::run_on(host, Outside::default(), settings, stopped) => ended.unwrap(),
                () = answers => {}
            }
        };
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(work);
        };
        // A profiler shows its name.
        let thread = thread::Builder::new().name("agent".to_owned()).spawn(work).unwrap();
        Self {
            questions,
            stop,
            thread,
        }
    }

    /// CPU time of its thread so far.
    pub fn cpu(&self) -> Duration {
        self.ask(Question::Cpu)
    }

    /// CPU milliseconds of each look at all sandboxes.
    pub fn looks_at_runtime(&self, rounds: usize) -> Vec<f64> {
        self.ask(|answer| Question::Looks(rounds, answer))
    }

    fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> T {
        let (answer, reply) = oneshot::channel();
        assert!(self.questions.send(question(answer)).is_ok());
        reply.blocking_recv().unwrap()
    }

    pub fn stop(self) {
        self.stop.send(()).ok();
        self.thread.join().unwrap();
    }
}

/// As the search for leftovers does.
async fn looks(endpoint: &CriEndpoint, rounds: usize) -> Vec<f64> {
    let cri = Cri::new(endpoint, Effects::ungated());
    let mut took = Vec::new();
    for _ in 0..rounds {
        let before = cpu();
        let sandboxes = cri.list_sandboxes().await.unwrap();
        assert!(!runtime_pods(sandboxes).is_empty());
        took.push((cpu() - before).as_secs_f64() * 1000.0);
    }
    took
}

fn cpu() -> Duration {
    Duration::from(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap())
}

fn flags(node: &Node) -> NodeFlags {
    NodeFlags {
        driver_hold: "10m".to_owned(),
        mode: ModeFlag::Always,
        take_over_after: "45s".to_owned(),
        fence_kubelet: false,
        gc: Mode::Never,
        gc_kubeconfig: None,
        force_unmount: ForceUnmount::Never,
        node_condition: false,
        metrics_addr: None,
        otlp_endpoint: None,
        otlp_ca_file: None,
        kubeconfig: Some(node.path("kubeconfig")),
        node_name: Some(NODE.to_owned()),
        cri_endpoint: Some(node.endpoint()),
        kubelet_root: Some(node.path("kubelet")),
        kubelet_config: Some(node.path("kubelet.yaml")),
        kubelet_config_dir: None,
        kubelet_start: None,
        cgroup_root: None,
        state_dir: node.path("state"),
        socket: SocketFlag {
            socket: node.path("socket"),
        },
        shutdown_timeout: "20s".to_owned(),
    }
}
