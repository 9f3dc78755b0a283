//! CSI volumes with several uses at once: they are unstaged only after the last use.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use nix::mount::umount;
use pod_teardown::{
    node::{fault::Cause, pod_dir::PodDir},
    teardown::volumes::mapped_pods,
};
use testbed::{
    command::Killed,
    drivers::{
        Behavior, CsiCall,
        csi_volumes::{Pv, stage_and_publish, stage_and_publish_block},
    },
};

use tonic::Code;

use crate::{
    crowd::no_forks,
    csi::{disk, nothing_of_the_device},
    images::run,
    node::{IN_USE, Known, Node, PV, another_volume, on_node},
    space::{UID, assert_precious, bind, tear_down_volumes, tmpfs, write},
};

/// Another PersistentVolume with the same handle.
const SAME_HANDLE: Pv<'_> = Pv { name: "pv-twin", ..PV };

async fn is_torn_down(node: &Node<'_>, pod: &PodDir) {
    tear_down_volumes(pod, &node.storage).await.unwrap();
}

pub fn nothing_is_mounted(node: &Node<'_>) {
    assert_eq!(testbed::mounts::below(&node.space.root).unwrap(), Vec::<PathBuf>::new());
}

/// The volume stays in use for this reason while `holder` is there, also for an agent that has started again, and is released after it.
pub async fn stays_in_use_while<H>(node: &mut Node<'_>, volume: &str, holder: H, why: &str) {
    for _ in 0..2 {
        let text = node.fails().await;
        assert!(text.contains(why), "{text}");
        assert_eq!(node.known.has_in_use(), [volume]);
        node.restart();
    }
    drop(holder);
    node.is_torn_down_soon().await;
    node.assert_clean();
    nothing_is_mounted(node);
}

#[test]
fn volume_used_as_file_system_and_block_device_is_unstaged_after_the_last_use() {
    for block_first in [false, true] {
        on_node(Known::with(&[IN_USE]), async move |node| {
            let other = node.space.another_pod();
            stage_and_publish(&node.space.root, UID, &PV).unwrap();
            stage_and_publish_block(&node.space.root, other.uid(), &SAME_HANDLE, &disk(node.space), false).unwrap();
            let pods = [node.space.pod.clone(), other];
            let (first, last) = if block_first {
                (&pods[1], &pods[0])
            } else {
                (&pods[0], &pods[1])
            };
            is_torn_down(node, first).await;
            assert_eq!(node.calls(), ["unpublish"], "block first: {block_first}");
            assert_eq!(node.known.has_in_use(), [IN_USE]);
            is_torn_down(node, last).await;
            assert_eq!(node.calls(), ["unpublish", "unpublish", "unstage", "unstage"]);
            nothing_is_mounted(node);
            assert_eq!(nothing_of_the_device(&node.space.root), Vec::<PathBuf>::new());
            node.assert_clean();
        });
    }
}

#[test]
fn unused_file_system_stage_is_kept_while_a_pod_uses_the_block_device() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let other = node.space.another_pod();
        let published = stage_and_publish(&node.space.root, UID, &PV).unwrap();
        let block =
            stage_and_publish_block(&node.space.root, other.uid(), &SAME_HANDLE, &disk(node.space), false).unwrap();
        umount(&published.target).unwrap();
        fs::remove_dir_all(&published.volume).unwrap();
        node.unused_is_torn_down().await;
        assert_eq!(node.calls(), [""; 0]);
        assert_eq!(node.known.has_in_use(), [IN_USE]);
        assert!(block.link.is_symlink());
        is_torn_down(node, &other).await;
        nothing_is_mounted(node);
        node.assert_clean();
    });
}

/// The paths at which a kubelet maps a raw block volume for a pod, and at which its driver publishes it.
fn entries(root: &Path, uid: &str) -> [PathBuf; 2] {
    let all = root.join("plugins/kubernetes.io/csi/volumeDevices");
    [all.join("pv-1/dev").join(uid), all.join("publish/pv-1").join(uid)]
}

#[test]
fn leftovers_of_a_pod_without_directory_do_not_keep_a_device_staged() {
    for left in 0..2 {
        on_node(Known::with(&[IN_USE]), async move |node| {
            stage_and_publish_block(&node.space.root, UID, &PV, &disk(node.space), true).unwrap();
            write(&entries(&node.space.root, "dead")[left], "");
            node.is_torn_down().await;
            assert_eq!(node.calls(), ["unpublish", "unstage"]);
            assert_eq!(nothing_of_the_device(&node.space.root), Vec::<PathBuf>::new());
            nothing_is_mounted(node);
            node.assert_clean();
        });
    }
}

#[test]
fn mount_of_a_pod_without_directory_keeps_the_device_staged_until_its_teardown() {
    for left in 0..2 {
        on_node(Known::with(&[IN_USE]), async move |node| {
            let block = stage_and_publish_block(&node.space.root, UID, &PV, &disk(node.space), true).unwrap();
            let dead = node.space.another_pod();
            let entry = &entries(&node.space.root, dead.uid())[left];
            write(entry, "");
            bind(&block.staging.join("device"), entry);
            fs::remove_dir(dead.path()).unwrap();
            node.is_torn_down().await;
            assert_eq!(node.calls(), ["unpublish"]);
            assert_eq!(node.known.has_in_use(), [IN_USE]);
            assert_eq!(mapped_pods(&node.storage), Ok(vec![dead.uid().to_owned()]));
            is_torn_down(node, &dead).await;
            assert_eq!(node.calls(), ["unpublish", "unpublish", "unstage"]);
            nothing_is_mounted(node);
            node.assert_clean();
        });
    }
}

#[test]
fn file_left_by_a_driver_is_removed_if_empty() {
    for holds in ["", "precious"] {
        on_node(Known::with(&[IN_USE]), async move |node| {
            let block = stage_and_publish_block(&node.space.root, UID, &PV, &disk(node.space), false).unwrap();
            for mounted in [&block.device, &block.target] {
                umount(mounted).unwrap();
            }
            fs::write(&block.target, holds).unwrap();
            node.driver.behave_for(1, Behavior::Pretends);
            node.is_torn_down().await;
            assert_eq!(node.calls(), ["unpublish", "unstage"], "{holds:?}");
            assert!(!block.link.is_symlink());
            assert_eq!(node.known.has_in_use(), [""; 0], "it can be attached elsewhere");
            let kept = fs::read_to_string(&block.target);
            assert_eq!(kept.ok(), (!holds.is_empty()).then(|| holds.to_owned()));
        });
    }
}

#[test]
fn unreadable_file_counts_as_use_of_every_volume_and_has_a_remedy() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let torn = node.space.another_pod().path().join("volumes/kubernetes.io~csi/pv-9");
        write(&torn.join("vol_data.json"), "");
        let staged = stage_and_publish(&node.space.root, UID, &PV).unwrap();
        node.is_torn_down().await;
        assert_eq!(node.calls(), ["unpublish"]);
        assert_eq!(node.known.has_in_use(), [IN_USE]);
        let text = node.unused_fails().await;
        assert!(text.contains("globalmount"), "{text}");
        assert!(text.contains(torn.join("vol_data.json").to_str().unwrap()), "{text}");
        assert!(text.contains("remove its directory"), "{text}");
        assert!(staged.staging.unwrap().join("data").exists());
        fs::remove_dir_all(&torn).unwrap();
        node.unused_is_torn_down().await;
        node.assert_clean();
    });
}

#[test]
fn manual_unmount_is_not_advised_for_a_volume_that_a_pod_may_use() {
    on_node(Known::default(), async |node| {
        let published = stage_and_publish(&node.space.root, UID, &PV).unwrap();
        let (global, own) = (published.staging.unwrap(), published.volume.join("vol_data.json"));
        fs::write(global.with_file_name("vol_data.json"), "").unwrap();
        assert_eq!(node.unused_fails().await, "", "the pod's file identifies it");
        fs::write(&own, "{").unwrap();
        let text = node.unused_fails().await;
        assert!(!text.contains("by hand") && text.contains(UID), "{text}");
        assert!(
            text.contains("cut off") && text.contains(own.to_str().unwrap()),
            "{text}"
        );
        fs::remove_file(&own).unwrap();
        assert!(node.unused_fails().await.contains("it does not exist"));
        assert!(published.target.join("data").exists());

        umount(&published.target).unwrap();
        fs::remove_dir_all(&published.volume).unwrap();
        bind(&global, &node.space.outside);
        let text = node.unused_fails().await;
        assert!(!text.contains("by hand") && text.contains("outside"), "{text}");
        umount(&node.space.outside).unwrap();
        let text = node.unused_fails().await;
        assert!(text.contains("by hand"), "{text}");
    });
}

#[test]
fn holder_of_a_volume_that_is_busy_for_its_driver_is_named() {
    let _crowd = no_forks();
    on_node(Known::with(&[IN_USE]), async |node| {
        let published = node.publish();
        for place in [published.target, published.staging.unwrap()] {
            let holder = Killed::sleep_in(&place).unwrap();
            let mut why = node.fails().await;
            // An emulated machine may need several searches until one reads all processes in time.
            for _ in 0..20 {
                if !why.contains("not all processes were read") {
                    break;
                }
                why = node.fails().await;
            }
            let named = format!("process {} \"sleep\"", holder.pid());
            drop(holder);
            assert!(why.contains("busy") && why.contains(&named), "{why}");
        }
        node.is_torn_down_soon().await;
        node.assert_clean();
    });
}

#[test]
fn volume_published_as_a_link_is_unpublished_without_following_it() {
    for pretends in [false, true] {
        on_node(Known::with(&[IN_USE]), async move |node| {
            let published = stage_and_publish(&node.space.root, UID, &PV).unwrap();
            umount(&published.target).unwrap();
            fs::remove_dir(&published.target).unwrap();
            let volume = node.space.outside.join("volume");
            tmpfs(&volume);
            write(&volume.join("file"), "precious");
            symlink(&volume, &published.target).unwrap();
            node.driver.crash().await;
            let why = node.fails().await;
            assert!(why.contains("is not available on this node"), "{why}");
            assert!(published.target.is_symlink() && node.known.has_in_use() == [IN_USE]);
            node.driver.come_back().unwrap();
            if pretends {
                // It leaves the link.
                node.driver.behave_for(1, Behavior::Pretends);
            }
            node.is_torn_down().await;
            assert_eq!(node.calls(), ["unpublish", "unstage"]);
            assert!(!published.target.is_symlink());
            assert_precious(volume.join("file"));
            node.assert_clean();
        });
    }
}

#[test]
fn volume_unknown_to_its_driver_counts_as_removed_once_unmounted() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let published = node.publish();
        let unknown = Behavior::Fails(Code::NotFound, "no such volume".to_owned());
        node.driver.behave_if(|call| *call != CsiCall::Capabilities, unknown);
        for place in [&published.target, published.staging.as_ref().unwrap()] {
            let why = node.fails().await;
            assert!(why.contains("NotFound") && why.contains(&format!("{place:?}")), "{why}");
            assert_eq!(node.known.has_in_use(), [IN_USE]);
            umount(place).unwrap();
        }
        node.is_torn_down().await;
        node.assert_clean();
    });
}

#[test]
fn files_below_a_target_whose_mount_vanished_are_named_with_a_command() {
    for is_uninstalled in [false, true] {
        on_node(Known::with(&[IN_USE]), async move |node| {
            let published = node.publish();
            umount(&published.target).unwrap();
            write(&published.target.join("orders.db"), "precious");
            if is_uninstalled {
                umount(published.staging.as_ref().unwrap()).unwrap();
                fs::remove_dir_all(published.staging.as_ref().unwrap().parent().unwrap()).unwrap();
                node.driver.crash().await;
            }
            let faults = node.tear_down().await.unwrap_err();
            let text = faults[0].to_string();
            assert!(
                matches!(faults[0].cause, Cause::NotEmpty(_)) && faults.len() == 1,
                "{faults:?}"
            );
            let command = format!("mv {:?} ", published.target);
            assert!(text.contains("\"orders.db\"") && text.contains(&command), "{text}");
            let kept = node.space.outside.join("kept");
            fs::rename(&published.target, &kept).unwrap();
            node.is_torn_down().await;
            assert_precious(kept.join("orders.db"));
            node.assert_clean();
        });
    }
}

#[test]
fn unreadable_directory_of_another_pod_is_named_with_a_remedy() {
    on_node(Known::with(&[IN_USE]), async |node| {
        node.publish();
        let other = node.space.another_pod();
        bind(other.path(), other.path());
        let why = node.fails().await;
        for words in [
            other.path().to_str().unwrap(),
            "it is unknown whether the pod of this directory",
            "unmount or remove what no kubelet has created",
        ] {
            assert!(why.contains(words), "{words:?} is not in {why}");
        }
        assert!(!node.calls().contains(&"unstage"));
        umount(other.path()).unwrap();
        node.is_torn_down().await;
        node.assert_clean();
    });
}

/// A volume on a device, staged and published: one in memory cannot be attached elsewhere.
pub fn on_device(node: &Node<'_>, pv: &Pv<'_>) -> PathBuf {
    let image = disk(node.space);
    run("mkfs.ext2", &["-q".as_ref(), "-F".as_ref(), image.as_os_str()]);
    mounted_on(node, pv, &["-o".as_ref(), "loop".as_ref(), image.as_os_str()])
}

/// A volume that is staged with these arguments of `mount`, and published.
pub fn mounted_on(node: &Node<'_>, pv: &Pv<'_>, mount: &[&OsStr]) -> PathBuf {
    let published = stage_and_publish(&node.space.root, UID, pv).unwrap();
    let staging = published.staging.unwrap();
    for place in [&published.target, &staging] {
        umount(place).unwrap();
    }
    run("mount", &[mount, &[staging.as_os_str()]].concat());
    bind(&staging, &published.target);
    staging
}

/// A process in its own mount namespace, with or without propagation from ours.
pub fn unshared(propagation: &str) -> Killed {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", propagation, "sleep", "1000"]);
    Killed::start(&mut command).and_then(|it| it.running("sleep")).unwrap()
}

#[test]
fn volume_mounted_in_another_namespace_is_unstaged_only_if_unmounts_propagate() {
    let _crowd = no_forks();
    let (volume, in_use) = another_volume("followed");
    for (propagation, is_kept) in [("private", true), ("slave", false), ("shared", false)] {
        on_node(Known::with(&[&in_use]), async move |node| {
            on_device(node, &volume);
            let holder_process = unshared(propagation);
            if is_kept {
                let text = node.fails().await;
                let asked = node.calls().contains(&"unstage");
                let kept = format!(
                    "would stay mounted in the mount namespace of process {}",
                    holder_process.pid()
                );
                drop(holder_process);
                assert!(text.contains(&kept) && !asked, "{text}");
                while node.tear_down().await.is_err() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            } else {
                let done = node.tear_down().await;
                drop(holder_process);
                done.unwrap();
            }
            node.assert_clean();
            nothing_is_mounted(node);
        });
    }
}
