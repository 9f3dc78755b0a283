//! CSI volumes whose mounts are not what they seem: other views of the kubelet's directory, and paths that a tenant chose.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use nix::mount::{MntFlags, umount, umount2};
use pod_teardown::{
    node::{effects::Effects, kubelet_root::KubeletRoot, pod_dir::PodDir},
    teardown::volumes::storage::Storage,
};
use testbed::{
    command::Killed,
    drivers::{
        Behavior, CsiCall,
        csi_volumes::{LoopDevice, Pv, stage_and_publish, stage_and_publish_block, staging},
    },
};
use tonic::Code;

use crate::{
    crowd::no_forks,
    csi::disk,
    csi_users::{mounted_on, nothing_is_mounted, on_device, stays_in_use_while, unshared},
    images::run,
    node::{IN_USE, Known, Node, PV, another_volume, on_node},
    space::{UID, bind, tear_down_volumes, tmpfs},
};

/// A pod's process that has an own file system at a path that its owner chose, like a mounted emptyDir of the node's disk, in one in
/// memory with this source.
fn mounts_at_chosen_path(node: &Node<'_>, device: &Path, path: &Path, source: &Path) -> Killed {
    let at = node.space.outside.join("rootfs").join(path);
    let script = "mount -n -t tmpfs $4 $1 && mkdir -p $2 && mount -n $3 $2 && exec sleep 1000";
    let rootfs = node.space.outside.join("rootfs");
    fs::create_dir_all(&rootfs).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    command.args([&*rootfs, &*at, device, source]);
    Killed::start(&mut command).and_then(|it| it.running("sleep")).unwrap()
}

/// A loop device with a file system.
fn loop_disk(image: &Path) -> LoopDevice {
    fs::write(image, vec![0; 1 << 20]).unwrap();
    run("mkfs.ext2", &["-q".as_ref(), "-F".as_ref(), image.as_os_str()]);
    LoopDevice::attach(image).unwrap()
}

#[test]
fn path_or_source_that_a_tenant_chose_keeps_no_volume_in_use() {
    let _crowd = no_forks();
    let (volume, in_use) = another_volume("victim");
    for is_staged in [true, false] {
        on_node(Known::with(&[&in_use]), async move |node| {
            let of_attacker = loop_disk(&node.space.outside.join("attacker"));
            let staged = staging(&node.space.root, &volume);
            let chosen = Path::new("x").join(staged.strip_prefix(&node.space.root).unwrap());
            // It keeps its device number when it is unmounted.
            let of_victim = loop_disk(&node.space.outside.join("victim"));
            let _attacker = mounts_at_chosen_path(node, &of_attacker.path, &chosen, &of_victim.path);
            mounted_on(node, &volume, &[of_victim.path.as_os_str()]);
            if !is_staged {
                // A kubelet has unstaged it, so that its device is unknown.
                for path in node.space.mounted().iter().chain([&staged]) {
                    umount(path).unwrap();
                }
            }
            node.is_torn_down().await;
            node.assert_clean();
            nothing_is_mounted(node);
        });
    }
}

#[test]
fn recorded_device_in_another_namespace_keeps_the_volume_in_use_after_a_restart() {
    let _crowd = no_forks();
    let (volume, in_use) = another_volume("kept");
    on_node(Known::with(&[&in_use]), async move |node| {
        let staging = on_device(node, &volume);
        let is_unstage = |call: &CsiCall| matches!(call, CsiCall::Unstage { .. });
        node.driver
            .behave_if(is_unstage, Behavior::Fails(Code::Internal, "no".to_owned()));
        node.fails().await;
        let holder_process = unshared("private");
        // The call has unmounted it, and failed after that.
        umount(&staging).unwrap();
        node.driver.behave_if(is_unstage, Behavior::Well);
        let kept = format!("mount namespace of process {}", holder_process.pid());
        for _ in 0..2 {
            node.restart();
            let text = node.fails().await;
            assert!(text.contains(&kept), "{text}");
            assert_eq!(node.known.has_in_use(), [&*in_use]);
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
    let (volume, in_use) = another_volume("not-staged");
    let volume = Pv {
        staged: false,
        ..volume
    };
    on_node(Known::with(&[&in_use]), async move |node| {
        node.driver.stages(false);
        let disk = loop_disk(&node.space.outside.join("not-staged"));
        let published = stage_and_publish(&node.space.root, UID, &volume).unwrap();
        umount(&published.target).unwrap();
        let mount = Command::new("mount").args([&disk.path, &published.target]).status();
        assert!(mount.unwrap().success());
        // Not a copy at the same path: the removal of that directory unmounts it everywhere.
        let holder_process = mounts_at_chosen_path(node, &disk.path, Path::new("data"), Path::new("none"));
        let kept = format!("mount namespace of process {}", holder_process.pid());
        stays_in_use_while(node, &in_use, holder_process, &kept).await;
    });
}

#[test]
fn kubelet_root_behind_a_bind_mount_shows_each_mount_twice_and_delays_nothing() {
    let _crowd = no_forks();
    let (volume, in_use) = another_volume("twice");
    on_node(Known::with(&[IN_USE, &in_use]), async move |node| {
        let view = node.space.outside.join("data-disk");
        fs::create_dir(&view).unwrap();
        bind(&node.space.root, &view);
        let published = node.publish();
        node.space.subpath(PV.name, 0, &published.target);
        on_device(node, &volume);
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
        api: Arc::new(node.known.clone()),
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
        done.unwrap();
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
        let other_disk = loop_disk(&node.space.outside.join("other-disk"));
        node.is_torn_down().await;
        assert!(!lock.is_attached() && others_lock.is_attached());
        assert_eq!(node.known.has_in_use(), [IN_USE]);
        umount2(&of_other.device, MntFlags::MNT_DETACH).unwrap();
        tear_down_volumes(&other, &node.storage).await.unwrap();
        assert!(!others_lock.is_attached());
        drop(other_disk);
        node.assert_clean();
        nothing_is_mounted(node);
    });
}
