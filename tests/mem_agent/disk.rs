//! Volumes, cgroups and directories that block the final delete.

use std::{
    process::{Child, Command},
    sync::mpsc,
    thread::{self, JoinHandle},
};

use nix::{sys::stat::Mode, unistd::mkfifo};
use tokio::task::spawn_blocking;

use crate::prelude::*;

async fn with_simple_pod() -> Node {
    Node::running(&["web"]).await
}

pub fn cgroup(node: &Node, name: &str) -> PathBuf {
    node.path("cgroup/kubepods").join(format!("pod{}", uid(name)))
}

#[tokio::test(start_paused = true)]
async fn volumes_and_cgroup_are_removed_before_the_object() {
    let node = with_simple_pod().await;
    for plugin in ["empty-dir", "projected", "secret", "configmap", "downward-api"] {
        let volume = node.pod_dir("web").join(format!("volumes/kubernetes.io~{plugin}/v"));
        fs::create_dir_all(volume.join("..data")).unwrap();
        fs::write(volume.join("..data/key"), "value").unwrap();
    }
    fs::create_dir_all(cgroup(&node, "web").join("container")).unwrap();
    node.delete("web", None).await;
    node.wait_deleted("web").await;
    assert!(!cgroup(&node, "web").exists() && !node.pod_dir("web").join("volumes/kubernetes.io~secret/v").exists());
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn volume_of_an_unknown_plugin_keeps_the_object_and_is_named_in_status() {
    for (kind, phase) in [
        // A reported end would start the controller's timeout for a forced detach.
        ("kubernetes.io~rbd/pvc-1", "Running"),
        ("example.com~flex/x", "Running"),
        // The end itself may be reported.
        ("kubernetes.io~nfs/share", "Succeeded"),
    ] {
        let node = with_simple_pod().await;
        let volume = node.pod_dir("web").join("volumes").join(kind);
        fs::create_dir_all(volume.join("mount")).unwrap();
        fs::write(volume.join("vol_data.json"), "{}").unwrap();
        node.delete("web", None).await;
        node.wait_blocked("web", kind).await;
        sleep(secs(300)).await;
        assert_eq!(request_codes(&node, "delete", "pods"), []);
        assert_eq!(node.phase("web").await, phase, "{kind}");
        // Its data is not the agent's.
        assert!(volume.join("vol_data.json").exists());
        assert_eq!(node.count_events("web", "FailedUnMount").await, 1);
        // Its driver removes it.
        fs::remove_dir_all(&volume).unwrap();
        node.wait_torn_down("web").await;
    }
}

#[tokio::test(start_paused = true)]
async fn mounts_are_found_with_pods_on_another_disk() {
    let mut node = Node::new().await;
    fs::create_dir_all(node.path("disk/pods")).unwrap();
    fs::remove_dir(node.path("kubelet/pods")).unwrap();
    symlink(node.path("disk/pods"), node.path("kubelet/pods")).unwrap();
    node.simple_pod("web");
    let mounted = node.path("disk/pods").join(uid("web")).join("plugins/other");
    fs::create_dir_all(&mounted).unwrap();
    let table = fs::read_to_string(node.path("mountinfo")).unwrap();
    let mount = format!("32 1 0:50 / {} rw - tmpfs tmpfs rw\n", mounted.display());
    fs::write(node.path("mountinfo"), table.clone() + &mount).unwrap();
    node.run().await;
    node.delete("web", None).await;
    node.wait_blocked("web", "plugins/other").await;
    sleep(secs(100)).await;
    assert!(mounted.exists() && request_codes(&node, "delete", "pods").is_empty());
    fs::write(node.path("mountinfo"), table).unwrap();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn symlink_in_place_of_the_volumes_directory_is_not_followed() {
    let node = with_simple_pod().await;
    let precious = node.path("precious/kubernetes.io~empty-dir/data");
    fs::create_dir_all(&precious).unwrap();
    fs::write(precious.join("file"), "").unwrap();
    symlink(node.path("precious"), node.pod_dir("web").join("volumes")).unwrap();
    node.delete("web", None).await;
    node.wait_blocked("web", "volumes").await;
    sleep(secs(100)).await;
    assert!(precious.join("file").exists() && request_codes(&node, "delete", "pods").is_empty());
}

#[tokio::test(start_paused = true)]
async fn pod_with_cgroup_processes_unknown_to_the_runtime_is_blocked() {
    for class in ["", "burstable", "besteffort"] {
        let node = with_simple_pod().await;
        // The runtime has lost its state, or is another one.
        node.cri.change(|world| {
            world.containers.clear();
            world.sandboxes.clear();
        });
        let cgroup = node
            .path("cgroup/kubepods")
            .join(class)
            .join(format!("pod{}", uid("web")));
        fs::create_dir_all(cgroup.join("container")).unwrap();
        fs::write(cgroup.join("container/cgroup.procs"), "4711\n4712\n").unwrap();
        node.delete("web", None).await;
        node.wait_blocked("web", "blocked: 2 processes in this cgroup (first PID 4711)")
            .await;
        sleep(secs(200)).await;
        assert!(cgroup.exists() && node.pod_dir("web").exists());
        assert_eq!(request_codes(&node, "delete", "pods"), []);
        assert_eq!(node.phase("web").await, "Running", "the exit is unknown");
        fs::remove_dir_all(&cgroup).unwrap();
        node.wait_torn_down("web").await;
    }
}

/// A file whose readers block until it is removed, at most a minute of real time.
struct HangingFile {
    end: mpsc::Sender<()>,
    remover: JoinHandle<bool>,
}

impl HangingFile {
    fn at(path: PathBuf) -> Self {
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let (end, ends) = mpsc::channel();
        let remover = thread::spawn(move || {
            let in_time = ends.recv_timeout(Duration::from_secs(60)).is_ok();
            // A waiting reader gets a writer, then the end of the file.
            let pipe = fs::File::options().read(true).write(true).open(&path).unwrap();
            fs::remove_file(&path).unwrap();
            thread::sleep(Duration::from_millis(100));
            drop(pipe);
            in_time
        });
        Self { end, remover }
    }

    /// Removes it; `false` if the readers were released before.
    fn end(self) -> bool {
        // No receiver: released before.
        self.end.send(()).ok();
        self.remover.join().unwrap()
    }
}

// The paused clock does not advance while a thread works.
#[tokio::test]
async fn hanging_filesystem_check_blocks_no_other_pod() {
    let mut node = Node::with_pods(&["web", "other"]).await;
    fs::create_dir_all(cgroup(&node, "web").join("child")).unwrap();
    let hangs = HangingFile::at(cgroup(&node, "web").join("child/cgroup.procs"));
    node.run().await;
    node.delete("web", None).await;
    node.delete("other", None).await;
    node.wait_deleted("other").await;
    assert!(node.get("web").await.is_some());
    assert!(hangs.end(), "all has waited for it");
}

/// A process that must not be killed as one of the pod's.
pub struct Bystander(Child);

impl Bystander {
    pub fn in_cgroup(cgroup: &Path) -> Self {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        fs::create_dir_all(cgroup).unwrap();
        fs::write(cgroup.join("cgroup.procs"), format!("{}\n", child.id())).unwrap();
        Self(child)
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Waits until the agent has killed it, which takes virtual time, and until it has exited, which takes real time.
    pub async fn wait_killed(&mut self) {
        for _ in 0..6000 {
            if !self.is_alive() {
                return;
            }
            sleep(Duration::from_millis(150)).await;
            // The paused clock does not advance meanwhile.
            spawn_blocking(|| thread::sleep(Duration::from_millis(10)))
                .await
                .unwrap();
        }
        panic!("process {} is not killed", self.0.id());
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        // It may be dead already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[tokio::test(start_paused = true)]
async fn runtime_that_forgets_containers_during_a_stop_proves_nothing() {
    // It forgets all containers, or one.
    for lost in ["", "main"] {
        let mut node = Node::new().await;
        let main = hooked(&json!({ "sleep": { "seconds": 10 } }))[0].take();
        let containers = json!([main, { "name": "other", "image": "registry.test/busybox:1" }]);
        node.pod("web", &containers, |pod| pod.container("main").container("other"));
        let volume = node.pod_dir("web").join("volumes/kubernetes.io~empty-dir/data");
        fs::create_dir_all(&volume).unwrap();
        let id = node.cri.look(|world| world.container("main").unwrap().id.clone());
        let mut process = Bystander::in_cgroup(&cgroup(&node, "web").join(&id));
        node.run().await;
        node.delete("web", None).await;
        sleep(secs(5)).await;
        node.cri.change(|world| {
            world.containers.retain(|_, container| !container.name.contains(lost));
            if lost.is_empty() {
                world.sandboxes.clear();
            }
        });
        node.wait_blocked("web", "processes in this cgroup (first PID").await;
        sleep(secs(200)).await;
        assert!(process.is_alive() && volume.exists(), "{lost:?}");
        assert_eq!(node.phase("web").await, "Running", "{lost:?}");
        fs::remove_dir_all(cgroup(&node, "web").join(&id)).unwrap();
        node.wait_torn_down("web").await;
    }
}

#[tokio::test(start_paused = true)]
async fn cgroup_processes_are_unknown_to_a_runtime_with_only_a_sandbox() {
    let mut node = Node::with_pods(&["web"]).await;
    node.cri.change(|world| {
        world.containers.clear();
        world.sandboxes.values_mut().for_each(|sandbox| sandbox.ready = false);
    });
    let other = cgroup(&node, "web").join("0123456789abcdef");
    let mut process = Bystander::in_cgroup(&other);
    node.run().await;
    node.delete("web", None).await;
    node.wait_blocked("web", "blocked: 1 processes in this cgroup").await;
    sleep(secs(200)).await;
    assert!(process.is_alive() && node.cri.effects().is_empty());
    fs::remove_dir_all(&other).unwrap();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn approved_processes_are_killed_before_teardown_and_others_never() {
    let mut node = Node::with_pods(&["web"]).await;
    node.cri.change(|world| {
        world.containers.clear();
        world.sandboxes.values_mut().for_each(|sandbox| sandbox.ready = false);
    });
    let volume = node.pod_dir("web").join("volumes/kubernetes.io~empty-dir/data");
    fs::create_dir_all(&volume).unwrap();
    let other = cgroup(&node, "web").join("0123456789abcdef");
    let mut process = Bystander::in_cgroup(&other);
    // A slow kernel: while the file exists, it only gets the request to kill.
    let kill = cgroup(&node, "web").join("cgroup.kill");
    fs::write(&kill, "").unwrap();
    node.run().await;
    node.delete("web", None).await;
    node.wait_blocked("web", "agent kills them: pod-teardown approve pod/default/web")
        .await;
    let held = kubelet(&node);
    sleep(secs(10)).await;
    approve(&node, "pod/default/web").await.unwrap();
    // The shown evidence is not the present one.
    let new = cgroup(&node, "web").join("fedcba9876543210");
    let stranger = Bystander::in_cgroup(&new);
    fs::remove_dir_all(held).unwrap();
    sleep(secs(120)).await;
    assert!(process.is_alive());
    drop(stranger);
    fs::remove_dir_all(&new).unwrap();
    let asked = || fs::read_to_string(&kill).unwrap() == "1";
    wait_until!(asked());
    sleep(secs(60)).await;
    assert!(process.is_alive() && volume.exists());
    let shown = node.get("web").await.unwrap();
    assert!(!["Succeeded", "Failed"].contains(&shown["status"]["phase"].as_str().unwrap()));
    // The kernel kills and removes the cgroup's files.
    fs::remove_file(&kill).unwrap();
    process.wait_killed().await;
    fs::remove_dir_all(&other).unwrap();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn leftover_processes_of_a_known_pod_are_killed() {
    let mut node = Node::with_pods(&["web"]).await;
    let ids = node.cri.look(|world| {
        let container = world.container("main").unwrap();
        [container.id.clone(), container.sandbox_id.clone()]
    });
    let pod = cgroup(&node, "web");
    // A process left of its container, one of a sandbox named as by CRI-O, and one moved there by hand.
    let places = [
        pod.join(&ids[0]).join("deeper"),
        pod.join(format!("crio-{}", ids[1])),
        pod,
    ];
    let mut processes = places.map(|place| Bystander::in_cgroup(&place));
    node.run().await;
    node.delete("web", None).await;
    for process in &mut processes {
        process.wait_killed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn leftover_processes_are_killed_while_a_volume_blocks_the_pod() {
    let mut node = Node::with_pods(&["web"]).await;
    let volume = node.pod_dir("web").join("volumes/kubernetes.io~unheard-of/data");
    fs::create_dir_all(&volume).unwrap();
    let id = node.cri.look(|world| world.container("main").unwrap().id.clone());
    let container = cgroup(&node, "web").join(id);
    let mut process = Bystander::in_cgroup(&container);
    let procs = container.join("cgroup.procs");
    node.run().await;
    node.delete("web", None).await;
    process.wait_killed().await;
    // As the kernel does.
    fs::write(procs, "").unwrap();
    node.wait_blocked("web", "unheard-of").await;
    assert!(volume.exists() && cgroup(&node, "web").exists() && request_codes(&node, "delete", "pods").is_empty());
}
