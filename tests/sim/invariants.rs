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

/// A pod `u` with a running container, and a running agent.
struct Scene {
    state: State,
    cri: ScriptedCri,
    _dir: tempfile::TempDir,
}

impl Scene {
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

    fn history(&self, change: impl FnOnce(&mut PodHistory)) -> &Self {
        change(self.state.now().pods.get_mut("u").unwrap());
        self
    }

    fn known(&self, change: impl FnOnce(&mut Known)) -> &Self {
        change(&mut self.state.now());
        self
    }

    fn ending(&self, grace: u64) -> &Self {
        self.history(|history| {
            history.deleted = true;
            history.ask(Asker::Api, Duration::from_secs(grace));
        })
    }

    fn call(&self, kind: Kind, timeout: Option<u64>) -> &Self {
        let id = match kind {
            Kind::StopPodSandbox | Kind::RemovePodSandbox => "sandbox-u-0",
            _ => "container-u-c-0",
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
        self
    }

    fn request(&self, home: bool, verb: &str, body: &str) -> &Self {
        self.request_of("pods", home, verb, body)
    }

    fn request_of(&self, resource: &str, home: bool, verb: &str, body: &str) -> &Self {
        let asked = Asked {
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            user: format!("system:node:{NODE}"),
            ..Asked::default()
        };
        for code in [None, Some(200)] {
            judge::request(&self.state, &self.cri, home, &asked, body.as_bytes(), code);
        }
        self
    }

    #[track_caller]
    fn assert_broken(&self, number: Option<u8>) {
        let broken = self.state.now().broken.clone();
        let expected = number.map(|number| format!("invariant {number} "));
        let same = match (&broken, &expected) {
            (None, None) => true,
            (Some(broken), Some(expected)) => broken.starts_with(expected),
            _ => false,
        };
        assert!(same, "{broken:?} instead of {expected:?}");
    }
}

const THIS: &str = r#"{"preconditions":{"uid":"u"},"metadata":{"uid":"u"}}"#;

#[tokio::test(start_paused = true)]
async fn early_final_delete_is_detected() {
    let scene = Scene::new();
    scene.ending(30).request(true, "delete", THIS).assert_broken(Some(1));
    let scene = Scene::new();
    scene.cri.change(|world| world.containers.clear());
    scene
        .ending(30)
        .known(|known| known.mount(known.node.join("kubelet/pods/u/volumes/v")));
    scene.request(true, "delete", THIS).assert_broken(Some(1));
    let scene = Scene::new();
    scene.cri.change(|world| world.containers.clear());
    fs::create_dir_all(scene.state.now().node.join("cgroup/kubepods/besteffort/podu")).unwrap();
    scene.ending(30).request(true, "delete", THIS).assert_broken(Some(1));
    let scene = Scene::new();
    scene.cri.change(|world| world.containers.clear());
    scene.ending(30).request(true, "delete", THIS).assert_broken(None);
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

#[tokio::test(start_paused = true)]
async fn effect_on_the_wrong_pod_is_detected() {
    Scene::new()
        .ending(30)
        .request(true, "patch", "{}")
        .assert_broken(Some(2));
    Scene::new().request(true, "patch", THIS).assert_broken(Some(2));
    Scene::new().call(Kind::StopContainer, Some(30)).assert_broken(Some(2));
    Scene::new().ending(30).request(true, "patch", THIS).assert_broken(None);
}

#[tokio::test(start_paused = true)]
async fn shortened_or_extended_grace_period_is_detected() {
    Scene::new()
        .ending(30)
        .call(Kind::StopContainer, Some(30))
        .assert_broken(None);
    Scene::new()
        .ending(30)
        .call(Kind::StopContainer, Some(28))
        .assert_broken(Some(4));
    Scene::new()
        .ending(30)
        .call(Kind::StopPodSandbox, None)
        .assert_broken(Some(4));
    let scene = Scene::new();
    scene.ending(30).call(Kind::StopContainer, Some(30));
    advance(Duration::from_secs(10)).await;
    scene.call(Kind::StopContainer, Some(20)).assert_broken(None);
    scene
        .known(|known| known.agent.run += 1)
        .call(Kind::StopContainer, Some(30))
        .assert_broken(Some(4));
    let scene = Scene::new();
    scene.ending(1).call(Kind::StopContainer, Some(2));
    advance(Duration::from_secs(10)).await;
    scene.call(Kind::StopContainer, Some(2)).assert_broken(None);
}

#[tokio::test(start_paused = true)]
async fn rerun_of_a_hook_is_detected() {
    let hook = || {
        let scene = Scene::new();
        scene.ending(30).call(Kind::ExecSync, Some(30));
        scene
    };
    hook().call(Kind::ExecSync, Some(30)).assert_broken(Some(5));
    // A crash may precede the record of the hook's completion, but not the stop.
    let interrupted = hook();
    interrupted
        .known(|known| known.agent.run += 1)
        .call(Kind::ExecSync, Some(30))
        .assert_broken(None);
    let recorded = hook();
    recorded
        .call(Kind::StopContainer, Some(30))
        .known(|known| known.agent.run += 1);
    recorded.call(Kind::ExecSync, Some(30)).assert_broken(Some(5));
}

#[tokio::test(start_paused = true)]
async fn data_loss_is_detected() {
    let scene = Scene::new();
    fs::remove_file(scene.state.now().node.join("outside/keep")).unwrap();
    scene
        .history(|history| history.deleted = true)
        .known(Known::check_files)
        .assert_broken(Some(6));
    let scene = Scene::new();
    scene.history(|history| history.deleted = true);
    scene.known(|known| known.mount(known.node.join("kubelet/pods/u/volumes/v")));
    scene.known(Known::check_files).assert_broken(Some(6));
    let scene = Scene::new();
    scene.known(Known::check_files).assert_broken(Some(6));
}

#[tokio::test(start_paused = true)]
async fn effect_during_a_mismatch_on_a_static_pod_or_beside_a_kubelet_is_detected() {
    Scene::new()
        .ending(30)
        .request(false, "patch", THIS)
        .assert_broken(Some(7));
    let scene = Scene::new();
    scene.ending(30).known(|known| known.wrong_world = Some(Instant::now()));
    advance(Duration::from_secs(1)).await;
    scene.call(Kind::StopContainer, Some(30)).assert_broken(Some(7));
    Scene::new()
        .ending(30)
        .history(|history| history.is_static = true)
        .call(Kind::StopContainer, Some(30))
        .assert_broken(Some(8));
    let scene = Scene::new();
    scene.ending(30).known(|known| known.kubelet = Some(Instant::now()));
    scene.call(Kind::StopContainer, Some(30)).assert_broken(None);
    advance(Duration::from_secs(2)).await;
    scene.call(Kind::StopContainer, Some(29)).assert_broken(Some(9));
}

const WRONG: &str = r#"{"reason":"RuntimeStateMismatch","involvedObject":{"uid":"u"}}"#;

#[tokio::test(start_paused = true)]
async fn overruling_a_correct_runtime_is_detected() {
    let conclude = |scene: &Scene| {
        scene.request_of("events", true, "create", WRONG);
        scene.request(true, "delete", THIS);
    };
    let scene = Scene::new();
    conclude(scene.ending(30));
    scene.assert_broken(Some(1));
    let loses_shim = |pid| {
        let scene = Scene::new();
        scene.cri.change(|world| {
            let id = "container-u-c-0";
            world.containers.get_mut(id).unwrap().pid = pid;
            world.kill_shim(id);
        });
        scene.ending(30).history(|history| history.shim_died = true);
        scene
    };
    let wrong = loses_shim(Some(7));
    conclude(&wrong);
    wrong.assert_broken(None);
    let names_none = loses_shim(None);
    conclude(&names_none);
    names_none.assert_broken(Some(1));
    let has_children = loses_shim(Some(7));
    has_children.known(|known| _ = known.children.insert("container-u-c-0".to_owned()));
    conclude(&has_children);
    has_children.assert_broken(Some(1));
}

#[tokio::test(start_paused = true)]
async fn success_of_an_unknown_exit_is_detected() {
    const SUCCEEDED: &str = r#"{"metadata":{"uid":"u"},"status":{"phase":"Succeeded"}}"#;
    let scene = Scene::new();
    scene.ending(30).request(true, "patch", SUCCEEDED).assert_broken(None);
    let scene = Scene::new();
    scene.ending(30).history(|history| history.end_unknown = true);
    scene.request(true, "patch", SUCCEEDED).assert_broken(Some(10));
}

#[tokio::test(start_paused = true)]
async fn unmount_under_a_running_container_is_detected() {
    for (runs, number) in [(Some("c"), Some(1)), (None, None)] {
        let scene = Scene::new();
        let volume = scene.state.now().node.join("kubelet/pods/u/volumes/v");
        fs::create_dir_all(&volume).unwrap();
        fs::write(volume.join("data"), "").unwrap();
        scene.ending(30).known(|known| {
            known.mount(volume.clone());
            known.unmount(&volume, runs).unwrap();
        });
        scene.assert_broken(number);
    }
}
