//! How long it takes from the start of a kubelet until all effects are blocked: on an idle node, and beside programs that use
//! all processors. The kubelet is a shell with its name; events and processes are the node's.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "what was measured is printed"
)]

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pod_teardown::{
    handover::guard::kubelet::{KubeletSearch, KubeletWatch},
    journal::Journal,
    node::{
        host::PROC,
        kubelet_process::LocalKubelet,
        kubelet_root::KubeletRoot,
        process_events::{KernelEvents, ProcessEvents as _},
        threads::Blocking,
    },
    teardown::work::Work,
};
use testbed::bench::Table;

const STARTS: u16 = 100;
/// Time between the end of a kubelet and the start of the next one.
const BREAK: Duration = Duration::from_millis(500);
/// Longer than any interval of the searches.
const LIMIT: Duration = Duration::from_secs(10);
const GOAL: f64 = 20.0;

/// A process that is ended when it is dropped.
struct Process(Child);

fn main() {
    // `cargo test` runs benches, too; there is nothing to measure without optimization.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("pods")).unwrap();
    let ours = LocalKubelet {
        root: KubeletRoot::resolve(dir.path()).unwrap(),
        runtime: dir.path().join("cri.sock"),
        healthz: None,
    };
    let program = dir.path().join("kubelet");
    symlink("/bin/sh", &program).unwrap();
    let search = KubeletSearch {
        proc: Path::new(PROC).into(),
        ours,
        blocking: Blocking::default(),
        events: Some(Arc::new(KernelEvents)),
        expected: None,
    };
    let (journal, work) = (Journal::in_memory(), Work::default());
    let kubelet = Arc::new(KubeletWatch::new(search, journal, work, Arc::default()));
    let watched = Arc::clone(&kubelet);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let events = runtime.block_on(async { KernelEvents.execs().map(drop) });
    events.expect("run this as root: it needs process events");
    thread::spawn(move || runtime.block_on(watched.watch()));
    let processors = thread::available_parallelism().unwrap().get();
    let mut table = Table::default();
    measure("idle", &kubelet, &program, None, &mut table);
    let load: Vec<Process> = (0..processors)
        .map(|_| start("sh", &["-c", "while kill -0 $PPID; do :; done"]))
        .collect();
    measure("all processors busy", &kubelet, &program, Some(GOAL), &mut table);
    drop(load);
    let title = format!("start of a kubelet until effects are blocked; {STARTS} starts");
    println!("{}", table.text(&title));
}

/// Starts a kubelet again and again.
fn measure(what: &str, kubelet: &KubeletWatch, program: &Path, goal: Option<f64>, table: &mut Table) {
    let root = format!("--root-dir={}", program.parent().unwrap().display());
    let mut took: Vec<f64> = (0..STARTS)
        .map(|nth| {
            wait_until(|| kubelet.kubelet().is_none());
            // No start is in step with an interval of the agent.
            thread::sleep(BREAK + Duration::from_millis(u64::from(nth) * 7 % 200));
            let before = Instant::now();
            let started = start(program.to_str().unwrap(), &["-c", "read -r end", "kubelet", &root]);
            wait_until(|| {
                kubelet
                    .kubelet()
                    .is_some_and(|seen| u32::try_from(seen.pid) == Ok(started.0.id()))
            });
            before.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    took.sort_by(f64::total_cmp);
    let percentile = took[took.len() * 95 / 100 - 1];
    table.add(format!("{what}: median"), "ms", took);
    table.add_with_goal(format!("{what}: 95 of 100"), "ms", goal, [percentile]);
}

fn start(program: &str, arguments: &[&str]) -> Process {
    // A shell that reads stays until its input ends.
    let child = Command::new(program).args(arguments).stdin(Stdio::piped()).spawn();
    Process(child.unwrap())
}

fn wait_until(is_so: impl Fn() -> bool) {
    let from = Instant::now();
    while !is_so() {
        assert!(
            from.elapsed() < LIMIT,
            "the agent does not see the kubelet start or exit"
        );
        thread::sleep(Duration::from_micros(100));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).ok();
    }
}
