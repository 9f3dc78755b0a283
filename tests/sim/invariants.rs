//! The judge detects each broken invariant.

use std::{fs, time::Duration};

use testbed::{
    apiserver::requests::Asked,
    scripted_cri::{Director as _, Kind, ScriptedCri, Seen, World},
};
use tokio::time::{Instant, advance};

use crate::{
    judge::{self, Judge},
    pods::NODE,
    state::{Asker, Known, PodHistory, State},
};
use Event::{Call, Change, Ends, History, Later, Request, Runtime};

/// What happens to the pod `u` or to the node.
enum Event {
    /// A user deletes it with this grace period.
    Ends(u64),
    /// A call of the agent with this timeout.
    Call(Kind, Option<u64>),
    /// A request of the agent to its own cluster: verb, resource and body.
    Request(&'static str, &'static str, &'static str),
    /// Seconds pass.
    Later(u64),
    History(fn(&mut PodHistory)),
    Change(fn(&mut Known)),
    Runtime(fn(&mut World)),
}

const CONTAINER: &str = "container-u-c-0";
const THIS: &str = r#"{"preconditions":{"uid":"u"},"metadata":{"uid":"u"}}"#;
const SUCCEEDED: &str = r#"{"metadata":{"uid":"u"},"status":{"phase":"Succeeded"}}"#;
const WRONG: &str = r#"{"reason":"RuntimeStateMismatch","involvedObject":{"uid":"u"}}"#;
const STOP: Kind = Kind::StopContainer;
const PATCH: Event = Request("patch", "pods", THIS);
const DELETE: Event = Request("delete", "pods", THIS);
const MISMATCH: Event = Request("create", "events", WRONG);
const RESTART: Event = Change(|known| known.agent.run += 1);
const NO_CONTAINERS: Event = Runtime(|world| world.containers.clear());
const MOUNT: Event = Change(|known| known.mount(known.node.join("kubelet/pods/u/volumes/v")));
const SHIM_DIED: Event = History(|history| history.shim_died = true);
const SHIM_DIES: Event = Runtime(|world| {
    world.containers.get_mut(CONTAINER).unwrap().pid = Some(7);
    world.kill_shim(CONTAINER);
});
const CHECK_FILES: Event = Change(Known::check_files);

/// Events, and the number of the invariant that they break, if any.
const CASES: &[(&[Event], Option<u8>)] = &[
    // An early final delete.
    (&[Ends(30), DELETE], Some(1)),
    (&[NO_CONTAINERS, Ends(30), MOUNT, DELETE], Some(1)),
    (&[NO_CONTAINERS, Change(make_cgroup), Ends(30), DELETE], Some(1)),
    (&[NO_CONTAINERS, Ends(30), DELETE], None),
    // The wrong pod.
    (&[Ends(30), Request("patch", "pods", "{}")], Some(2)),
    (&[PATCH], Some(2)),
    (&[Call(STOP, Some(30))], Some(2)),
    (&[Ends(30), PATCH], None),
    // A grace period that is shortened or extended.
    (&[Ends(30), Call(STOP, Some(30))], None),
    (&[Ends(30), Call(STOP, Some(28))], Some(4)),
    (&[Ends(30), Call(Kind::StopPodSandbox, None)], Some(4)),
    (&[Ends(30), Call(STOP, Some(30)), Later(10), Call(STOP, Some(20))], None),
    (
        &[Ends(30), Call(STOP, Some(30)), Later(10), RESTART, Call(STOP, Some(30))],
        Some(4),
    ),
    (&[Ends(1), Call(STOP, Some(2)), Later(10), Call(STOP, Some(2))], None),
    // A hook that runs again. A crash may precede the record of its completion, but not the stop.
    (
        &[Ends(30), Call(Kind::ExecSync, Some(30)), Call(Kind::ExecSync, Some(30))],
        Some(5),
    ),
    (
        &[
            Ends(30),
            Call(Kind::ExecSync, Some(30)),
            RESTART,
            Call(Kind::ExecSync, Some(30)),
        ],
        None,
    ),
    (
        &[
            Ends(30),
            Call(Kind::ExecSync, Some(30)),
            Call(STOP, Some(30)),
            RESTART,
            Call(Kind::ExecSync, Some(30)),
        ],
        Some(5),
    ),
    // Lost data.
    (&[History(delete), Change(remove_outside), CHECK_FILES], Some(6)),
    (&[History(delete), MOUNT, CHECK_FILES], Some(6)),
    (&[CHECK_FILES], Some(6)),
    // During a mismatch, on a static pod, and beside a kubelet.
    (
        &[
            Ends(30),
            Change(|known| known.mismatch_since = Some(Instant::now())),
            Later(1),
            Call(STOP, Some(30)),
        ],
        Some(7),
    ),
    (
        &[
            Ends(30),
            History(|history| history.is_static = true),
            Call(STOP, Some(30)),
        ],
        Some(8),
    ),
    (&[Ends(30), Change(start_kubelet), Call(STOP, Some(30))], None),
    (
        &[Ends(30), Change(start_kubelet), Later(2), Call(STOP, Some(29))],
        Some(9),
    ),
    // A correct runtime is overruled.
    (&[Ends(30), MISMATCH, DELETE], Some(1)),
    (&[SHIM_DIES, Ends(30), SHIM_DIED, MISMATCH, DELETE], None),
    (
        &[
            Runtime(|world| world.kill_shim(CONTAINER)),
            Ends(30),
            SHIM_DIED,
            MISMATCH,
            DELETE,
        ],
        Some(1),
    ),
    (
        &[SHIM_DIES, Ends(30), SHIM_DIED, Change(add_child), MISMATCH, DELETE],
        Some(1),
    ),
    // Success of an unknown exit.
    (&[Ends(30), Request("patch", "pods", SUCCEEDED)], None),
    (
        &[
            Ends(30),
            History(|history| history.end_unknown = true),
            Request("patch", "pods", SUCCEEDED),
        ],
        Some(10),
    ),
    // An unmount under a running container.
    (&[Ends(30), Change(|known| unmount(known, Some("c")))], Some(1)),
    (&[Ends(30), Change(|known| unmount(known, None))], None),
];

fn make_cgroup(known: &mut Known) {
    fs::create_dir_all(known.node.join("cgroup/kubepods/besteffort/podu")).unwrap();
}

fn delete(history: &mut PodHistory) {
    history.deleted = true;
}

fn remove_outside(known: &mut Known) {
    fs::remove_file(known.node.join("outside/keep")).unwrap();
}

fn start_kubelet(known: &mut Known) {
    known.kubelet = Some(Instant::now());
}

fn add_child(known: &mut Known) {
    known.children.insert(CONTAINER.to_owned());
}

fn unmount(known: &mut Known, running: Option<&str>) {
    let volume = known.node.join("kubelet/pods/u/volumes/v");
    fs::create_dir_all(&volume).unwrap();
    fs::write(volume.join("data"), "").unwrap();
    known.mount(volume.clone());
    known.unmount(&volume, running).unwrap();
}

/// A pod `u` with a running container, and a running agent.
struct Fixture {
    state: State,
    cri: ScriptedCri,
    _dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/keep"), "").unwrap();
        let state = State::new(dir.path());
        let mut world = World::new();
        world.pod("default", "p", "u").container("c");
        let cri = ScriptedCri::without_socket(world, Box::new(Judge(state.clone())));
        state.now().pods.insert("u".to_owned(), PodHistory::default());
        Self { state, cri, _dir: dir }
    }

    fn history(&self, change: impl FnOnce(&mut PodHistory)) {
        change(self.state.now().pods.get_mut("u").unwrap());
    }

    fn call(&self, kind: Kind, timeout: Option<u64>) {
        let id = match kind {
            Kind::StopPodSandbox | Kind::RemovePodSandbox => "sandbox-u-0",
            _ => CONTAINER,
        };
        let seen = Seen {
            kind,
            id: id.to_owned(),
            name: "c".to_owned(),
            pod_uid: "u".to_owned(),
            timeout: timeout.map(Duration::from_secs),
            command: Vec::new(),
        };
        let judge = Judge(self.state.clone());
        self.cri.change(|world| {
            judge.effect(&seen, world);
            judge.answered(&seen, true, world);
        });
    }

    fn request(&self, home: bool, verb: &str, resource: &str, body: &str) {
        let asked = Asked {
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            user: format!("system:node:{NODE}"),
            ..Asked::default()
        };
        for code in [None, Some(200)] {
            judge::request(&self.state, &self.cri, home, &asked, body.as_bytes(), code);
        }
    }

    async fn happens(&self, event: &Event) {
        match *event {
            Ends(grace) => self.history(|history| {
                history.deleted = true;
                history.ask(Asker::Api, Duration::from_secs(grace));
            }),
            Call(kind, timeout) => self.call(kind, timeout),
            Request(verb, resource, body) => self.request(true, verb, resource, body),
            Later(seconds) => advance(Duration::from_secs(seconds)).await,
            History(change) => self.history(change),
            Change(change) => change(&mut self.state.now()),
            Runtime(change) => self.cri.change(change),
        }
    }

    fn broken(&self) -> Option<String> {
        self.state.now().broken.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn each_broken_invariant_is_detected() {
    for (case, (events, number)) in CASES.iter().enumerate() {
        let fixture = Fixture::new();
        for event in *events {
            fixture.happens(event).await;
        }
        let broken = fixture.broken();
        let found = broken.as_deref().and_then(|broken| broken.split(' ').nth(1));
        assert_eq!(
            found,
            number.map(|number| number.to_string()).as_deref(),
            "case {case}: {broken:?}"
        );
    }
    let fixture = Fixture::new();
    fixture.happens(&Ends(30)).await;
    fixture.request(false, "patch", "pods", THIS);
    assert!(
        fixture
            .broken()
            .is_some_and(|broken| broken.starts_with("invariant 7 ")),
        "in another cluster"
    );
}

#[tokio::test(start_paused = true)]
async fn rejected_stop_request_does_not_cancel_others() {
    let mut history = PodHistory::default();
    let first = Instant::now();
    history.ask(Asker::Api, Duration::from_secs(55));
    let refused = history.ask(Asker::Node, Duration::from_secs(3));
    history.ask(Asker::Api, Duration::from_secs(7));
    history.refuse(refused);
    assert_eq!(history.earliest_kill(), Some(first + Duration::from_secs(7)));
    assert!(!history.killed());
}

#[tokio::test(start_paused = true)]
async fn grace_period_that_is_over_in_whole_seconds_leaves_one() {
    let mut history = PodHistory::default();
    history.ask(Asker::Api, Duration::from_secs(10));
    advance(Duration::from_millis(5_670)).await;
    let set = |seconds| history.set_by_api(Duration::from_secs(seconds)).as_secs();
    assert_eq!((set(6), set(7)), (1, 7));
}
