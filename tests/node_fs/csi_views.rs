//! CSI volumes whose mounts are not what they seem: other views of the kubelet's directory, and paths that a tenant chose.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::Arc,
    time::Duration,
};

use nix::mount::{MntFlags, umount, umount2};
use pod_teardown::{
    node::{effects::Effects, kubelet_root::KubeletRoot, pod_dir::PodDir},
    teardown::volumes::{storage::Storage, tear_down_volumes},
};
use testbed::drivers::{
    Behavior, CsiCall,
    csi_volumes::{Pv, stage_and_publish, stage_and_publish_block, staging},
};
use tonic::Code;

use crate::{
    crowd::no_forks,
    csi::disk,
    csi_users::{mounted_on, nothing_is_mounted, on_device, stays_in_use_while, unshared},
    node::{IN_USE, Known, Node, PV, on_node},
    space::{UID, bind, tmpfs},
};

/// A process that is killed and waited for.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A pod's process that has an own file system at a path that its owner chose, like a mounted emptyDir of the node's disk, in one in
/// memory with this source.
async fn mounts_at_chosen_path(node: &Node<'_>, device: &Path, path: &Path, source: &Path) -> Killed {
    let at = node.space.outside.join("rootfs").join(path);
    let script = "mount -n -t tmpfs $4 $1 && mkdir -p $2 && mount -n $3 $2 && exec sleep 1000";
    let rootfs = node.space.outside.join("rootfs");
    fs::create_dir_all(&rootfs).unwrap();
    let process = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
        .args([&*rootfs, &*at, device, source])
        .spawn()
        .unwrap();
    let comm = format!("/proc/{}/comm", process.id());
    let process = Killed(process);
    while fs::read_to_string(&comm).unwrap().trim() != "sleep" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    process
}

/// A loop device with a file system.
struct LoopDisk(PathBuf);

impl LoopDisk {
    fn new(image: &Path) -> Self {
        fs::write(image, vec![0; 1 << 20]).unwrap();
        let run = |program: &str, args: &[&str]| {
            let output = Command::new(program).args(args).arg(image).output().unwrap();
            assert!(output.status.success(), "{program}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        run("mkfs.ext2", &["-q", "-F"]);
        Self(run("losetup", &["--find", "--show"]).trim().into())
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        assert!(
            Command::new("losetup")
                .arg("-d")
                .arg(&self.0)
                .status()
                .unwrap()
                .success()
        );
    }
}

#[test]
fn path_or_source_that_a_tenant_chose_keeps_no_volume_in_use() {
    let _crowd = no_forks();
    const VICTIM: Pv<'_> = Pv {
        name: "pv-victim",
        handle: "vol/victim",
        ..PV
    };
    for is_staged in [true, false] {
        on_node(
            Known::with(&["kubernetes.io/csi/csi.example.com^vol/victim"]),
            async move |node| {
                let of_attacker = LoopDisk::new(&node.space.outside.join("attacker"));
                let staged = staging(&node.space.root, &VICTIM);
                let chosen = Path::new("x").join(staged.strip_prefix(&node.space.root).unwrap());
                // It keeps its device number when it is unmounted.
                let of_victim = LoopDisk::new(&node.space.outside.join("victim"));
                let _attacker = mounts_at_chosen_path(node, &of_attacker.0, &chosen, &of_victim.0).await;
                mounted_on(node, &VICTIM, &[of_victim.0.as_os_str()]);
                if !is_staged {
                    // A kubelet has unstaged it, so that its device is unknown.
                    for path in node.space.mounted().iter().chain([&staged]) {
                        umount(path).unwrap();
                    }
                }
                node.is_torn_down().await;
                node.assert_clean();
                nothing_is_mounted(node);
            },
        );
    }
}

#[test]
fn recorded_device_in_another_namespace_keeps_the_volume_in_use_after_a_restart() {
    let _crowd = no_forks();
    const VOLUME: Pv<'_> = Pv {
        name: "pv-kept",
        handle: "vol/kept",
        ..PV
    };
    const VOLUME_IN_USE: &str = "kubernetes.io/csi/csi.example.com^vol/kept";
    on_node(Known::with(&[VOLUME_IN_USE]), async |node| {
        let staging = on_device(node, &VOLUME);
        let is_unstage = |call: &CsiCall| matches!(call, CsiCall::Unstage { .. });
        node.driver
            .behave_if(is_unstage, Behavior::Fails(Code::Internal, "no".to_owned()));
        node.fails().await;
        let holder_process = Killed(unshared("private").await);
        // The call has unmounted it, and failed after that.
        umount(&staging).unwrap();
        node.driver.behave_if(is_unstage, Behavior::Well);
        let kept = format!("mount namespace of process {}", holder_process.0.id());
        for _ in 0..2 {
            node.restart();
            let text = node.fails().await;
            assert!(text.contains(&kept), "{text}");
            assert_eq!(node.known.has_in_use(), [VOLUME_IN_USE]);
        }
        drop(holder_process);
        node.is_torn_down_soon().await;
        node.assert_clean();
        nothing_is_mounted(node);
    });
}

/// A driver that does not stage mounts its device where the pod sees it.
#[test]
fn device_of_a_driver_that_does_not_stage_keeps_the_volume_in_use_in_another_namespace() {
    let _crowd = no_forks();
    const VOLUME: Pv<'_> = Pv {
        name: "pv-not-staged",
        handle: "vol/not-staged",
        staged: false,
        ..PV
    };
    const VOLUME_IN_USE: &str = "kubernetes.io/csi/csi.example.com^vol/not-staged";
    on_node(Known::with(&[VOLUME_IN_USE]), async |node| {
        node.driver.stages(false);
        let disk = LoopDisk::new(&node.space.outside.join("not-staged"));
        let published = stage_and_publish(&node.space.root, UID, &VOLUME).unwrap();
        umount(&published.target).unwrap();
        let mount = Command::new("mount").args([&disk.0, &published.target]).status();
        assert!(mount.unwrap().success());
        // Not a copy at the same path: the removal of that directory unmounts it everywhere.
        let holder_process = mounts_at_chosen_path(node, &disk.0, Path::new("data"), Path::new("none")).await;
        let kept = format!("mount namespace of process {}", holder_process.0.id());
        stays_in_use_while(node, VOLUME_IN_USE, holder_process, &kept).await;
    });
}

/// The kubelet died after the driver's call and before it removed the directory: only the other namespace shows the device.
#[test]
fn copy_of_a_volume_that_a_kubelet_has_unstaged_keeps_it_in_use() {
    let _crowd = no_forks();
    const VOLUME: Pv<'_> = Pv {
        name: "pv-unstaged",
        handle: "vol/unstaged",
        ..PV
    };
    const VOLUME_IN_USE: &str = "kubernetes.io/csi/csi.example.com^vol/unstaged";
    on_node(Known::with(&[VOLUME_IN_USE]), async |node| {
        let staging = on_device(node, &VOLUME);
        for path in node.space.mounted() {
            umount(&path).unwrap();
        }
        let holder_process = Killed(unshared("private").await);
        umount(&staging).unwrap();
        let kept = format!("mount namespace of process {}", holder_process.0.id());
        stays_in_use_while(node, VOLUME_IN_USE, holder_process, &kept).await;
    });
}

/// As with CephFS, and a pod that has a private copy of the node's mounts. No detach follows.
#[test]
fn copy_of_a_volume_without_a_device_keeps_nothing_in_use() {
    let _crowd = no_forks();
    on_node(Known::with(&[IN_USE]), async |node| {
        stage_and_publish(&node.space.root, UID, &PV).unwrap();
        let _has_copy = Killed(unshared("private").await);
        node.is_torn_down().await;
        node.assert_clean();
        nothing_is_mounted(node);
    });
}

#[test]
fn kubelet_root_behind_a_bind_mount_shows_each_mount_twice_and_delays_nothing() {
    let _crowd = no_forks();
    const ON_DEVICE: Pv<'_> = Pv {
        name: "pv-twice",
        handle: "vol/twice",
        ..PV
    };
    const ON_DEVICE_IN_USE: &str = "kubernetes.io/csi/csi.example.com^vol/twice";
    on_node(Known::with(&[IN_USE, ON_DEVICE_IN_USE]), async |node| {
        let view = node.space.outside.join("data-disk");
        fs::create_dir(&view).unwrap();
        bind(&node.space.root, &view);
        let published = node.publish();
        node.space.subpath(PV.name, 0, &published.target);
        on_device(node, &ON_DEVICE);
        tmpfs(&node.space.volume("secret", "token"));
        assert_eq!(
            testbed::mounts::below(&view).unwrap().len(),
            1 + 6,
            "each mount is shown twice"
        );
        node.is_torn_down().await;
        assert_eq!(node.calls(), ["unpublish", "unpublish", "unstage", "unstage"]);
        node.assert_clean();
        nothing_is_mounted(node);
        assert_eq!(testbed::mounts::below(&view).unwrap(), [view]);
    });
}

/// An agent whose kubelet root is this path.
fn with_root(node: &mut Node<'_>, root: &Path) -> PodDir {
    let root = KubeletRoot::resolve(root).unwrap();
    let pod = PodDir::new(&root, UID).unwrap();
    node.storage = Arc::new(Storage {
        cluster: Arc::new(node.known.clone()),
        root,
        ..Arc::into_inner(node.space.storage(&Effects::ungated())).unwrap()
    });
    pod
}

#[test]
fn driver_in_a_container_gets_the_paths_that_a_kubelet_writes() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let link = node.space.outside.join("var-lib-kubelet");
        symlink(&node.space.root, &link).unwrap();
        node.publish();
        let pod = with_root(node, &link);
        node.driver.contain(&link, &node.space.root);
        let done = tear_down_volumes(&pod, &node.storage).await;
        let volume = format!("pods/{UID}/volumes/kubernetes.io~csi/{}/mount", PV.name);
        let paths: Vec<PathBuf> = node.driver.effects().into_iter().map(path_of).collect();
        assert_eq!(paths, [link.join(volume), staging(&link, &PV)]);
        assert_eq!(done.unwrap().unmounted, 2);
        node.assert_clean();
        nothing_is_mounted(node);
    });
}

fn path_of(call: CsiCall) -> PathBuf {
    match call {
        CsiCall::Unpublish { target_path, .. } => target_path,
        CsiCall::Unstage {
            staging_target_path, ..
        } => staging_target_path,
        CsiCall::Capabilities => panic!("it has no path"),
    }
}

#[test]
fn loop_device_of_a_map_that_was_detached_is_detached_before_the_volume_is_released() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let (disk, other) = (disk(node.space), node.space.another_pod());
        let own = stage_and_publish_block(&node.space.root, UID, &PV, &disk, true).unwrap();
        let of_other = stage_and_publish_block(&node.space.root, other.uid(), &PV, &disk, true).unwrap();
        umount2(&own.device, MntFlags::MNT_DETACH).unwrap();
        let (lock, others_lock) = (own.lock.as_ref().unwrap(), of_other.lock.as_ref().unwrap());
        assert!(lock.is_attached() && others_lock.is_attached());
        // A loop device that is not the kubelet's.
        let stranger = LoopDisk::new(&node.space.outside.join("stranger"));
        node.is_torn_down().await;
        assert!(!lock.is_attached() && others_lock.is_attached());
        assert_eq!(node.known.has_in_use(), [IN_USE]);
        umount2(&of_other.device, MntFlags::MNT_DETACH).unwrap();
        tear_down_volumes(&other, &node.storage).await.unwrap();
        assert!(!others_lock.is_attached());
        drop(stranger);
        node.assert_clean();
        nothing_is_mounted(node);
    });
}
