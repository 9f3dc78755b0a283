//! How soon a watch sees that a kubelet starts and exits, with the kernel's events and without.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use pod_teardown::{
    handover::guard::kubelet::{KubeletSearch, KubeletWatch},
    journal::Journal,
    node::{
        kubelet_process::LocalKubelet,
        kubelet_root::KubeletRoot,
        process_events::{KernelEvents, ProcessEvents},
        threads::Blocking,
    },
    teardown::work::Work,
};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::{crowd::no_forks, space::block_on};

/// A machine under load may not run a thread for seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that has a kubelet's name, and a watch of all processes of this machine.
struct Scene {
    temp: tempfile::TempDir,
    program: PathBuf,
    kubelet: Arc<KubeletWatch>,
    _watch: AbortOnDropHandle<()>,
}

impl Scene {
    async fn new(has_events: bool) -> Self {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("pods")).unwrap();
        // A process is named after the file that it was started by.
        let program = temp.path().join("kubelet");
        symlink("/bin/sh", &program).unwrap();
        let ours = LocalKubelet {
            root: KubeletRoot::resolve(temp.path()).unwrap(),
            runtime: temp.path().join("cri.sock"),
            healthz: None,
        };
        let search = KubeletSearch {
            proc: Path::new("/proc").into(),
            ours,
            blocking: Blocking::default(),
            events: has_events.then(|| Arc::new(KernelEvents) as Arc<dyn ProcessEvents>),
            expected: None,
        };
        let (journal, work) = (Journal::in_memory(), Work::default());
        let kubelet = Arc::new(KubeletWatch::new(search, journal, work, Arc::default()));
        let watch = tokio::spawn(Arc::clone(&kubelet).watch());
        let scene = Self {
            temp,
            program,
            kubelet,
            _watch: AbortOnDropHandle::new(watch),
        };
        scene.wait_until(None).await;
        scene
    }

    /// Waits until the watch knows this process as the kubelet, and no other.
    async fn wait_until(&self, kubelet: Option<&Child>) {
        let pid = kubelet.map(|child| child.id().cast_signed());
        let is_so = async {
            // `Err` until the first probe: no effect is allowed then either.
            while self.kubelet.kubelet().map(|known| known.pid) != pid {
                self.kubelet.probed.notified().await;
            }
        };
        let waited = timeout(PATIENCE, is_so).await;
        assert!(waited.is_ok(), "{pid:?} was not seen: {:?}", self.kubelet.kubelet());
    }

    /// The arguments of the kubelet, which waits for its input. For the guards of other tests it has another node's runtime.
    fn arguments(&self) -> [String; 4] {
        let temp = self.temp.path().display();
        [
            "-c".to_owned(),
            "read forever".to_owned(),
            format!("--root-dir={temp}"),
            format!("--container-runtime-endpoint=unix://{temp}/cri.sock"),
        ]
    }

    fn start(&self) -> Child {
        let mut command = Command::new(&self.program);
        command.args(self.arguments()).stdin(Stdio::piped()).spawn().unwrap()
    }

    /// The times from just before the start of a kubelet until all effects are blocked, and from its end until it is known, by length.
    async fn measure(&self, starts: usize) -> [Vec<Duration>; 2] {
        let (mut started, mut exited) = (Vec::new(), Vec::new());
        for turn in 0..starts {
            // Not always at the same time after the last search.
            sleep(Duration::from_millis(u64::try_from(turn % 7 * 30).unwrap())).await;
            let begin = Instant::now();
            let mut kubelet = self.start();
            self.wait_until(Some(&kubelet)).await;
            started.push(begin.elapsed());
            sleep(Duration::from_millis(20)).await;
            let end = Instant::now();
            kubelet.kill().unwrap();
            kubelet.wait().unwrap();
            self.wait_until(None).await;
            exited.push(end.elapsed());
        }
        started.sort();
        exited.sort();
        [started, exited]
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent).div_ceil(100) - 1]
}

fn figures(sorted: &[Duration]) -> String {
    let [median, high, longest] = [50, 95, 100].map(|percent| percentile(sorted, percent));
    format!("median {median:.1?}, 95th percentile {high:.1?}, longest {longest:.1?}")
}

/// The kernel reports events only in the initial namespaces, where these tests run.
#[test]
fn kubelet_start_and_exit_are_seen_before_the_next_search() {
    let _crowd = no_forks();
    let [started, exited] = block_on(async { Scene::new(true).await.measure(100).await });
    println!("exec to blocked effects, with events: {}", figures(&started));
    println!("exit to known exit, with events: {}", figures(&exited));
    // Without events, searches see most starts and exits after 0.8 s or more. Other tests delay some of them.
    for times in [&started, &exited] {
        assert!(percentile(times, 50) < Duration::from_millis(500), "{}", figures(times));
        assert!(
            percentile(times, 80) < Duration::from_millis(1500),
            "{}",
            figures(times)
        );
    }
}

#[test]
fn kubelet_start_and_exit_are_seen_without_events() {
    let _crowd = no_forks();
    let [started, exited] = block_on(async { Scene::new(false).await.measure(5).await });
    println!("exec to blocked effects, without events: {}", figures(&started));
    println!("exit to known exit, without events: {}", figures(&exited));
}

/// A process that becomes a kubelet by another exec keeps its pid.
#[tokio::test]
async fn program_that_replaces_itself_by_a_kubelet_is_seen() {
    let scene = Scene::new(true).await;
    let mut wrapper = Command::new("/bin/sh")
        .args(["-c", "read go; exec \"$@\"", "sh"])
        .arg(&scene.program)
        .args(scene.arguments())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    sleep(Duration::from_millis(100)).await;
    // A process of another test that could not be read in time counts as a kubelet until the next look.
    scene.wait_until(None).await;
    let begin = Instant::now();
    std::io::Write::write_all(wrapper.stdin.as_mut().unwrap(), b"go\n").unwrap();
    scene.wait_until(Some(&wrapper)).await;
    println!("exec in the same process to blocked effects: {:.1?}", begin.elapsed());
    wrapper.kill().unwrap();
    wrapper.wait().unwrap();
    scene.wait_until(None).await;
}
