//! That a watch sees a kubelet start and exit, with the kernel's events and without.

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
use tokio::time::{sleep, timeout};
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

    /// A kubelet starts and exits some times, and each is seen.
    async fn start_and_exit(&self) {
        for turn in 0..5 {
            // Not always at the same time after the last search.
            sleep(Duration::from_millis(turn * 130)).await;
            let mut kubelet = self.start();
            self.wait_until(Some(&kubelet)).await;
            kubelet.kill().unwrap();
            kubelet.wait().unwrap();
            self.wait_until(None).await;
        }
    }
}

/// The kernel reports events only in the initial namespaces, where these tests run. How soon it is, `make bench` measures.
#[test]
fn kubelet_start_and_exit_are_seen_with_the_kernels_events() {
    let _crowd = no_forks();
    block_on(async { Scene::new(true).await.start_and_exit().await });
}

#[test]
fn kubelet_start_and_exit_are_seen_without_events() {
    let _crowd = no_forks();
    block_on(async { Scene::new(false).await.start_and_exit().await });
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
    std::io::Write::write_all(wrapper.stdin.as_mut().unwrap(), b"go\n").unwrap();
    scene.wait_until(Some(&wrapper)).await;
    wrapper.kill().unwrap();
    wrapper.wait().unwrap();
    scene.wait_until(None).await;
}
