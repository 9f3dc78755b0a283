//! Each invariant can be broken: an agent that did wrong would be found out.

use std::{fs, time::Duration};

use testbed::{
    apiserver::requests::Asked,
    scripted_cri::{Director as _, Kind, ScriptedCri, Seen, World},
};
use tokio::time::{Instant, advance};

use crate::{
    judge::{self, Judge},
    pods::NODE,
    state::{Asker, Fate, Known, State},
};

/// A pod `u` with a container that runs, of an agent that lives.
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
        let cri = ScriptedCri::unheard(world, Box::new(Judge(state.clone())));
        state.now().pods.insert("u".to_owned(), Fate::default());
        Self { state, cri, _dir: dir }
    }

    fn fate(&self, change: impl FnOnce(&mut Fate)) -> &Self {
        change(self.state.now().pods.get_mut("u").unwrap());
        self
    }

    fn known(&self, change: impl FnOnce(&mut Known)) -> &Self {
        change(&mut self.state.now());
        self
    }

    fn ending(&self, grace: u64) -> &Self {
        self.fate(|fate| {
            fate.deleted = true;
            fate.ask(Asker::Api, Duration::from_secs(grace));
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
    fn broke(&self, number: Option<u8>) {
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
async fn a_pod_that_is_deleted_too_early_is_noticed() {
    let scene = Scene::new();
    scene.ending(30).request(true, "delete", THIS).broke(Some(1));
    let scene = Scene::new();
    scene.cri.change(|world| world.containers.clear());
    scene
        .ending(30)
        .known(|known| known.mount(known.node.join("kubelet/pods/u/volumes/v")));
    scene.request(true, "delete", THIS).broke(Some(1));
    let scene = Scene::new();
    scene.cri.change(|world| world.containers.clear());
    fs::create_dir_all(scene.state.now().node.join("cgroup/kubepods/besteffort/podu")).unwrap();
    scene.ending(30).request(true, "delete", THIS).broke(Some(1));
    let scene = Scene::new();
    scene.cri.change(|world| world.containers.clear());
    scene.ending(30).request(true, "delete", THIS).broke(None);
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_for_before_and_after_a_request_that_is_refused_stands() {
    let mut fate = Fate::default();
    let first = Instant::now();
    fate.ask(Asker::Api, Duration::from_secs(55));
    let refused = fate.ask(Asker::Node, Duration::from_secs(3));
    fate.ask(Asker::Api, Duration::from_secs(7));
    fate.refuse(refused);
    assert_eq!(fate.earliest_kill(), Some(first + Duration::from_secs(7)));
    assert!(!fate.killed());
}

#[tokio::test(start_paused = true)]
async fn what_is_done_to_another_pod_than_was_meant_is_noticed() {
    Scene::new().ending(30).request(true, "patch", "{}").broke(Some(2));
    Scene::new().request(true, "patch", THIS).broke(Some(2));
    Scene::new().call(Kind::StopContainer, Some(30)).broke(Some(2));
    Scene::new().ending(30).request(true, "patch", THIS).broke(None);
}

#[tokio::test(start_paused = true)]
async fn a_grace_that_is_cut_short_or_grows_is_noticed() {
    Scene::new().ending(30).call(Kind::StopContainer, Some(30)).broke(None);
    Scene::new()
        .ending(30)
        .call(Kind::StopContainer, Some(28))
        .broke(Some(4));
    Scene::new().ending(30).call(Kind::StopPodSandbox, None).broke(Some(4));
    let scene = Scene::new();
    scene.ending(30).call(Kind::StopContainer, Some(30));
    advance(Duration::from_secs(10)).await;
    scene.call(Kind::StopContainer, Some(20)).broke(None);
    scene
        .known(|known| known.agent.run += 1)
        .call(Kind::StopContainer, Some(30))
        .broke(Some(4));
    let scene = Scene::new();
    scene.ending(1).call(Kind::StopContainer, Some(2));
    advance(Duration::from_secs(10)).await;
    scene.call(Kind::StopContainer, Some(2)).broke(None);
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_runs_again_is_noticed() {
    let hook = || {
        let scene = Scene::new();
        scene.ending(30).call(Kind::ExecSync, Some(30));
        scene
    };
    hook().call(Kind::ExecSync, Some(30)).broke(Some(5));
    // A crash may come before the end is on the disk, but not before the stop.
    let interrupted = hook();
    interrupted
        .known(|known| known.agent.run += 1)
        .call(Kind::ExecSync, Some(30))
        .broke(None);
    let recorded = hook();
    recorded
        .call(Kind::StopContainer, Some(30))
        .known(|known| known.agent.run += 1);
    recorded.call(Kind::ExecSync, Some(30)).broke(Some(5));
}

#[tokio::test(start_paused = true)]
async fn data_that_is_lost_is_noticed() {
    let scene = Scene::new();
    fs::remove_file(scene.state.now().node.join("outside/keep")).unwrap();
    scene
        .fate(|fate| fate.deleted = true)
        .known(Known::check_files)
        .broke(Some(6));
    let scene = Scene::new();
    scene.fate(|fate| fate.deleted = true);
    scene.known(|known| known.mount(known.node.join("kubelet/pods/u/volumes/v")));
    scene.known(Known::check_files).broke(Some(6));
    let scene = Scene::new();
    scene.known(Known::check_files).broke(Some(6));
}

#[tokio::test(start_paused = true)]
async fn acting_in_the_wrong_world_on_a_static_pod_or_beside_a_kubelet_is_noticed() {
    Scene::new().ending(30).request(false, "patch", THIS).broke(Some(7));
    let scene = Scene::new();
    scene.ending(30).known(|known| known.wrong_world = Some(Instant::now()));
    advance(Duration::from_secs(1)).await;
    scene.call(Kind::StopContainer, Some(30)).broke(Some(7));
    Scene::new()
        .ending(30)
        .fate(|fate| fate.is_static = true)
        .call(Kind::StopContainer, Some(30))
        .broke(Some(8));
    let scene = Scene::new();
    scene.ending(30).known(|known| known.kubelet = Some(Instant::now()));
    scene.call(Kind::StopContainer, Some(30)).broke(None);
    advance(Duration::from_secs(2)).await;
    scene.call(Kind::StopContainer, Some(29)).broke(Some(9));
}

const WRONG: &str = r#"{"reason":"RuntimeStateWrong","involvedObject":{"uid":"u"}}"#;

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_right_and_is_overruled_is_noticed() {
    let conclude = |scene: &Scene| {
        scene.request_of("events", true, "create", WRONG);
        scene.request(true, "delete", THIS);
    };
    let scene = Scene::new();
    conclude(scene.ending(30));
    scene.broke(Some(1));
    let loses_shim = |pid| {
        let scene = Scene::new();
        scene.cri.change(|world| {
            let id = "container-u-c-0";
            world.containers.get_mut(id).unwrap().pid = pid;
            world.kill_shim(id);
        });
        scene.ending(30).fate(|fate| fate.shim_died = true);
        scene
    };
    let wrong = loses_shim(Some(7));
    conclude(&wrong);
    wrong.broke(None);
    let names_none = loses_shim(None);
    conclude(&names_none);
    names_none.broke(Some(1));
    let has_children = loses_shim(Some(7));
    has_children.known(|known| _ = known.children.insert("container-u-c-0".to_owned()));
    conclude(&has_children);
    has_children.broke(Some(1));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_end_that_is_called_a_success_is_noticed() {
    const SUCCEEDED: &str = r#"{"metadata":{"uid":"u"},"status":{"phase":"Succeeded"}}"#;
    let scene = Scene::new();
    scene.ending(30).request(true, "patch", SUCCEEDED).broke(None);
    let scene = Scene::new();
    scene.ending(30).fate(|fate| fate.end_unknown = true);
    scene.request(true, "patch", SUCCEEDED).broke(Some(10));
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_unmounted_under_a_container_is_noticed() {
    for (runs, number) in [(Some("c"), Some(1)), (None, None)] {
        let scene = Scene::new();
        let volume = scene.state.now().node.join("kubelet/pods/u/volumes/v");
        fs::create_dir_all(&volume).unwrap();
        fs::write(volume.join("data"), "").unwrap();
        scene.ending(30).known(|known| {
            known.mount(volume.clone());
            known.unmount(&volume, runs).unwrap();
        });
        scene.broke(number);
    }
}
