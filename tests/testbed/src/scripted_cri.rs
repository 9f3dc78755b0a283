//! A scripted container runtime on a real unix socket.
//!
//! `socket → service → stage {script, world, log}`
//!
//! Calls that only look are answered from a small [`World`], any number of times. Calls that change something must be
//! expected; what is not said about them is done as containerd does it. Everything runs in the caller's runtime, and
//! on its clock, which should be paused: it stands still while bytes are on the way.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use testbed::scripted_cri::{ScriptedCri, StopContainer, StopPodSandbox, World, expect};
//! # async fn test() {
//! let mut world = World::new();
//! world.pod("shop", "web-0", "uid-1").container("main").ignores_term();
//! let cri = ScriptedCri::start(world).await;
//! cri.in_order([
//!     expect(StopContainer::of("main").timeout(Duration::from_secs(30))),
//!     expect(StopPodSandbox::of("web-0")).then(Duration::from_secs(3)),
//! ]);
//! // ... point what is tested at cri.endpoint(), and then:
//! cri.finished().await;
//! # }
//! ```

mod answer;
mod call;
mod log;
mod pod;
mod script;
mod service;
mod stage;
mod world;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_cri::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use tempfile::TempDir;
use tokio::sync::Mutex;
use tonic::service::Routes;

use crate::grpc_socket::{Manner, Socket};
use service::Service;
use stage::Stage;

pub use call::{ExecSync, Kind, Pattern, RemoveContainer, RemovePodSandbox, Seen, StopContainer, StopPodSandbox};
pub use log::{Entry, Logged};
pub use pod::PodBuilder;
pub use script::{Expected, expect};
pub use stage::{Director, Fault, Read};
pub use world::{Manners, OnExec, OnTerm, SimContainer, SimSandbox, SimState, World};

/// How long [`ScriptedCri::finished`] waits on the virtual clock: longer than any grace period in a test.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A scripted container runtime. It fails the test if dropped before the script is complete.
#[derive(Debug)]
pub struct ScriptedCri {
    stage: Arc<Stage>,
    path: PathBuf,
    socket: Mutex<Option<Socket>>,
    /// Whether the result was already checked; then the drop does not repeat it.
    judged: std::sync::atomic::AtomicBool,
    _dir: Option<TempDir>,
}

impl ScriptedCri {
    /// Starts a runtime with this world and an empty script.
    pub async fn start(world: World) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the socket");
        let cri = Self {
            stage: Arc::new(Stage::new(world, None)),
            path: dir.path().join("cri.sock"),
            socket: Mutex::new(None),
            judged: false.into(),
            _dir: Some(dir),
        };
        cri.start_again().await;
        cri
    }

    /// A runtime controlled by its director, only reachable by [`ScriptedCri::service`].
    pub fn without_socket(world: World, director: Box<dyn Director>) -> Self {
        Self {
            stage: Arc::new(Stage::new(world, Some(director))),
            path: PathBuf::new(),
            socket: Mutex::new(None),
            judged: false.into(),
            _dir: None,
        }
    }

    /// The service behind the socket, to be called directly.
    pub fn service(&self) -> RuntimeServiceServer<impl RuntimeService + use<>> {
        RuntimeServiceServer::new(Service {
            stage: Arc::clone(&self.stage),
        })
    }

    /// Trace contexts of the calls with this name, such as `stop_pod_sandbox`.
    pub fn traceparents(&self, name: &str) -> Vec<String> {
        let traced = self
            .stage
            .traced
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let named = traced.iter().filter(|(call, _)| *call == name);
        named.map(|(_, context)| context.clone()).collect()
    }

    /// `unix://` and the path of the socket.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    // --- the script ---

    /// These calls must come one after another, after all that was expected before.
    pub fn in_order(&self, calls: impl IntoIterator<Item = Expected>) {
        let mut parts = self.stage.now();
        calls.into_iter().for_each(|call| parts.script.lanes([vec![call]]));
    }

    /// These calls must come in any order, after all earlier and before all later expectations.
    pub fn in_any_order(&self, calls: impl IntoIterator<Item = Expected>) {
        self.stage.now().script.lanes(calls.into_iter().map(|call| vec![call]));
    }

    /// These lists of calls must come in parallel, each in its own order: a hook before its container's stop, but
    /// independent of other containers.
    pub fn side_by_side(&self, lanes: impl IntoIterator<Item = Vec<Expected>>) {
        self.stage.now().script.lanes(lanes);
    }

    /// This call may come at any time, any number of times, or never.
    pub fn any_number_of(&self, call: Expected) {
        self.stage.now().script.at_any_time(call);
    }

    /// Every call may come at any time.
    pub fn allow_everything(&self) {
        self.stage.now().script.everything();
    }

    /// From now on, read-only calls fail like this.
    pub fn fault(&self, read: Read, fault: Fault) {
        self.fault_of(read, "", fault);
    }

    /// From now on, read-only calls for this container or sandbox fail like this. A container may be given by name.
    pub fn fault_of(&self, read: Read, target: &str, fault: Fault) {
        self.stage.now().faults.push((read, target.to_owned(), fault));
    }

    /// Read-only calls are answered again.
    pub fn heal(&self) {
        self.stage.now().faults.clear();
    }

    // --- world and log ---

    /// Reads the world.
    pub fn look<T>(&self, look: impl FnOnce(&World) -> T) -> T {
        look(&self.stage.now().world)
    }

    pub fn change<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        let result = change(&mut self.stage.now().world);
        self.stage.changed.notify_waiters();
        result
    }

    /// All calls so far.
    pub fn log(&self) -> Vec<Entry> {
        self.stage.now().log.entries.clone()
    }

    /// The changing calls so far, with their times since the start of the world.
    pub fn effects(&self) -> Vec<(Duration, Seen)> {
        let effect = |entry: Entry| match entry.call {
            Logged::Effect(seen) => Some((entry.at, seen)),
            Logged::Read(..) => None,
        };
        self.log().into_iter().filter_map(effect).collect()
    }

    // --- the socket ---

    /// Closes the socket and all connections. Calls in flight are lost, but their effects stay.
    pub async fn stop(&self) {
        if let Some(socket) = self.socket.lock().await.take() {
            socket.close().await;
        }
    }

    /// Listens again, with the world as it has become.
    pub async fn start_again(&self) {
        self.listen(Manner::Serve).await;
    }

    /// Accepts connections from now on and never answers.
    pub async fn fall_silent(&self) {
        self.listen(Manner::Silent).await;
    }

    /// Speaks another protocol to new connections from now on.
    pub async fn speak_another_protocol(&self) {
        self.listen(Manner::Foreign).await;
    }

    async fn listen(&self, manner: Manner) {
        self.stop().await;
        let socket = Socket::open(&self.path, manner, Routes::new(self.service())).expect("a socket to listen on");
        *self.socket.lock().await = Some(socket);
    }

    // --- the result ---

    /// Waits until every expected call has come and has been answered. Fails the test if one is missing or unexpected.
    #[track_caller]
    pub fn finished(&self) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            if let Err(verdict) = self.verdict(PATIENCE).await {
                panic!("at {caller}:\n{verdict}");
            }
        }
    }

    /// The same as a value, with another timeout.
    pub async fn verdict(&self, patience: Duration) -> Result<(), String> {
        let settled = async {
            loop {
                let changed = self.stage.changed.notified();
                {
                    let parts = self.stage.now();
                    if parts.script.has_violations() || (parts.script.is_fulfilled() && parts.playing == 0) {
                        break;
                    }
                }
                changed.await;
            }
        };
        let in_time = tokio::time::timeout(patience, settled).await.is_ok();
        let verdict = self.complaints();
        if verdict.is_none() && in_time {
            return Ok(());
        }
        self.judged.store(true, std::sync::atomic::Ordering::Relaxed);
        let late = || {
            format!(
                "an expected call was not answered within {patience:?}\n{}",
                self.stage.now().log
            )
        };
        Err(verdict.unwrap_or_else(late))
    }

    fn complaints(&self) -> Option<String> {
        let parts = self.stage.now();
        let complaints = parts.script.complaints();
        let list = complaints.iter().map(|line| format!("- {line}\n")).collect::<String>();
        (!complaints.is_empty()).then(|| format!("the script was not followed:\n{list}calls:\n{}", parts.log))
    }
}

impl Drop for ScriptedCri {
    fn drop(&mut self) {
        let reported = std::thread::panicking() || self.judged.load(std::sync::atomic::Ordering::Relaxed);
        if let Some(complaints) = self.complaints().filter(|_| !reported) {
            panic!("{complaints}");
        }
    }
}
