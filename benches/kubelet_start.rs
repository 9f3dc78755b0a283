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
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pod_teardown::{
    handover::guard::Guard,
    journal::Journal,
    node::{
        host::PROC,
        identity::Identity,
        kubelet_process::LocalKubelet,
        kubelet_root::KubeletRoot,
        process_events::{KernelEvents, ProcessEvents as _},
    },
};
use testbed::bench::{
    figures::Figures,
    line::{Line, table},
};

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
    let guard = Guard::new(Identity::default(), Journal::in_memory(), PathBuf::from(PROC));
    let guard = guard.with_process_events(Arc::new(KernelEvents));
    let watched = guard.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let events = runtime.block_on(async { KernelEvents.execs().map(drop) });
    events.expect("run this as root: it needs process events");
    thread::spawn(move || runtime.block_on(watched.watch_for_kubelet(ours)));
    let processors = thread::available_parallelism().unwrap().get();
    let mut lines = measure("idle", &guard, &program, dir.path(), None);
    let load: Vec<Process> = (0..processors)
        .map(|_| start("sh", &["-c", "while kill -0 $PPID; do :; done"]))
        .collect();
    lines.extend(measure("all processors busy", &guard, &program, dir.path(), Some(GOAL)));
    drop(load);
    println!(
        "{}",
        table(
            &format!("start of a kubelet until effects are blocked; {STARTS} starts"),
            &lines
        )
    );
}

/// Starts a kubelet again and again.
fn measure(what: &str, guard: &Guard, program: &Path, root: &Path, goal: Option<f64>) -> Vec<Line> {
    let root = format!("--root-dir={}", root.display());
    let mut took: Vec<f64> = (0..STARTS)
        .map(|nth| {
            wait_until(|| guard.kubelet().is_none());
            // No start is in step with an interval of the agent.
            thread::sleep(BREAK + Duration::from_millis(u64::from(nth) * 7 % 200));
            let before = Instant::now();
            let kubelet = start(program.to_str().unwrap(), &["-c", "read -r end", "kubelet", &root]);
            wait_until(|| {
                guard
                    .kubelet()
                    .is_some_and(|seen| u32::try_from(seen.pid) == Ok(kubelet.0.id()))
            });
            before.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    took.sort_by(f64::total_cmp);
    let line = |which: &str, figures, goal| Line::at_most(&format!("{what}: {which}"), "ms", figures, goal);
    let percentile = Figures::of([took[took.len() * 95 / 100 - 1]]);
    vec![
        line("median", Figures::of(took), None),
        line("95 of 100", percentile, goal),
    ]
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
