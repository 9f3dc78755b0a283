//! CSI volumes that are used in more than one way at once: nobody takes one off the node while anybody else has it.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::Arc,
    time::Duration,
};

use nix::mount::{MntFlags, umount, umount2};
use pod_teardown::{
    node::{fault::Cause, pod_dir::PodDir},
    teardown::volumes::{mapped_pods, tear_down_approved, tear_down_volumes},
};
use testbed::drivers::{
    Conduct, CsiCall,
    left::{Pv, stage_and_publish, stage_and_publish_block},
};

use tonic::Code;

use crate::{
    crowd::nobody_forks,
    csi::{disk, nothing_of_the_device},
    node::{IN_USE, Known, Node, PV, on_node},
    space::{UID, bind, tmpfs, write},
};

/// Another PersistentVolume with the same handle.
const TWIN: Pv<'_> = Pv { name: "pv-twin", ..PV };

async fn goes(node: &Node<'_>, pod: &PodDir) {
    assert_eq!(tear_down_volumes(pod, &node.storage).await.unwrap().withheld, 0);
}

fn nothing_is_mounted(node: &Node<'_>) {
    assert_eq!(testbed::mounts::below(&node.space.root).unwrap(), Vec::<PathBuf>::new());
}

#[test]
fn a_file_system_and_a_raw_block_device_of_one_volume_are_taken_off_the_node_with_the_last_of_them() {
    for block_first in [false, true] {
        on_node(Known::with(&[IN_USE]), async move |node| {
            let other = node.space.another_pod();
            stage_and_publish(&node.space.root, UID, &PV).unwrap();
            stage_and_publish_block(&node.space.root, other.uid(), &TWIN, &disk(node.space), false).unwrap();
            let pods = [node.space.pod.clone(), other];
            let (first, last) = if block_first {
                (&pods[1], &pods[0])
            } else {
                (&pods[0], &pods[1])
            };
            goes(node, first).await;
            assert_eq!(node.calls(), ["unpublish"], "block first: {block_first}");
            assert_eq!(node.known.has_in_use(), [IN_USE]);
            goes(node, last).await;
            assert_eq!(node.calls(), ["unpublish", "unpublish", "unstage", "unstage"]);
            nothing_is_mounted(node);
            assert_eq!(nothing_of_the_device(&node.space.root), Vec::<PathBuf>::new());
            node.assert_clean();
        });
    }
}

#[test]
fn two_raw_block_volumes_of_one_handle_are_taken_off_the_node_with_the_last_of_them() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let (disk, other) = (disk(node.space), node.space.another_pod());
        stage_and_publish_block(&node.space.root, UID, &PV, &disk, true).unwrap();
        stage_and_publish_block(&node.space.root, other.uid(), &TWIN, &disk, true).unwrap();
        node.goes().await;
        assert_eq!(node.calls(), ["unpublish"]);
        assert_eq!(node.known.has_in_use(), [IN_USE]);
        goes(node, &other).await;
        assert_eq!(node.calls(), ["unpublish", "unpublish", "unstage", "unstage"]);
        nothing_is_mounted(node);
        node.assert_clean();
    });
}

#[test]
fn a_file_system_and_a_raw_block_device_of_one_volume_that_end_at_once_leave_nothing_staged() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let other = node.space.another_pod();
        stage_and_publish(&node.space.root, UID, &PV).unwrap();
        stage_and_publish_block(&node.space.root, other.uid(), &TWIN, &disk(node.space), false).unwrap();
        node.driver.behave(Conduct::Slow(Duration::from_millis(50)));
        tokio::join!(node.goes(), goes(node, &other));
        assert_eq!(node.calls(), ["unpublish", "unpublish", "unstage", "unstage"]);
        nothing_is_mounted(node);
        node.assert_clean();
    });
}

#[test]
fn what_is_staged_with_a_file_system_for_nobody_stays_while_a_pod_has_the_volume_as_a_device() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let other = node.space.another_pod();
        let published = stage_and_publish(&node.space.root, UID, &PV).unwrap();
        let block = stage_and_publish_block(&node.space.root, other.uid(), &TWIN, &disk(node.space), false).unwrap();
        umount(&published.target).unwrap();
        fs::remove_dir_all(&published.volume).unwrap();
        node.unused_goes().await;
        assert_eq!(node.calls(), [""; 0]);
        assert_eq!(node.known.has_in_use(), [IN_USE]);
        assert!(block.link.is_symlink());
        goes(node, &other).await;
        nothing_is_mounted(node);
        node.assert_clean();
    });
}

/// Where a kubelet maps a raw block volume for a pod, and where its driver publishes it.
fn entries(root: &Path, uid: &str) -> [PathBuf; 2] {
    let all = root.join("plugins/kubernetes.io/csi/volumeDevices");
    [all.join("pv-1/dev").join(uid), all.join("publish/pv-1").join(uid)]
}

#[test]
fn what_is_left_of_a_pod_without_a_directory_keeps_no_device_staged_and_goes_with_it() {
    for left in 0..2 {
        on_node(Known::with(&[IN_USE]), async move |node| {
            stage_and_publish_block(&node.space.root, UID, &PV, &disk(node.space), true).unwrap();
            write(&entries(&node.space.root, "dead")[left], "");
            node.goes().await;
            assert_eq!(node.calls(), ["unpublish", "unstage"]);
            assert_eq!(nothing_of_the_device(&node.space.root), Vec::<PathBuf>::new());
            nothing_is_mounted(node);
            node.assert_clean();
        });
    }
}

#[test]
fn what_is_mounted_for_a_pod_without_a_directory_keeps_the_device_staged_until_that_pod_is_taken_down() {
    for left in 0..2 {
        on_node(Known::with(&[IN_USE]), async move |node| {
            let block = stage_and_publish_block(&node.space.root, UID, &PV, &disk(node.space), true).unwrap();
            let dead = node.space.another_pod();
            let entry = &entries(&node.space.root, dead.uid())[left];
            write(entry, "");
            bind(&block.staging.join("device"), entry);
            fs::remove_dir(dead.path()).unwrap();
            node.goes().await;
            assert_eq!(node.calls(), ["unpublish"]);
            assert_eq!(node.known.has_in_use(), [IN_USE]);
            assert_eq!(mapped_pods(&node.storage), Ok(vec![dead.uid().to_owned()]));
            goes(node, &dead).await;
            assert_eq!(node.calls(), ["unpublish", "unpublish", "unstage"]);
            nothing_is_mounted(node);
            node.assert_clean();
        });
    }
}

#[test]
fn a_file_that_a_driver_leaves_where_it_published_a_device_goes_unless_it_holds_something() {
    for holds in ["", "precious"] {
        on_node(Known::with(&[IN_USE]), async move |node| {
            let block = stage_and_publish_block(&node.space.root, UID, &PV, &disk(node.space), false).unwrap();
            for mounted in [&block.device, &block.target] {
                umount(mounted).unwrap();
            }
            fs::write(&block.target, holds).unwrap();
            node.driver.behave_for(1, Conduct::Pretends);
            node.goes().await;
            assert_eq!(node.calls(), ["unpublish", "unstage"], "{holds:?}");
            assert!(!block.link.is_symlink());
            assert_eq!(node.known.has_in_use(), [""; 0], "it can be attached elsewhere");
            let kept = fs::read_to_string(&block.target);
            assert_eq!(kept.ok(), (!holds.is_empty()).then(|| holds.to_owned()));
        });
    }
}

#[test]
fn a_file_that_cannot_be_read_counts_as_a_use_of_every_volume_and_is_named_with_what_to_do() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let torn = node.space.another_pod().path().join("volumes/kubernetes.io~csi/pv-9");
        write(&torn.join("vol_data.json"), "");
        let staged = stage_and_publish(&node.space.root, UID, &PV).unwrap();
        node.goes().await;
        assert_eq!(node.calls(), ["unpublish"]);
        assert_eq!(node.known.has_in_use(), [IN_USE]);
        let told = node.unused_fails().await;
        assert!(told.contains("globalmount"), "{told}");
        assert!(told.contains(torn.join("vol_data.json").to_str().unwrap()), "{told}");
        assert!(told.contains("remove its directory"), "{told}");
        assert!(staged.staging.unwrap().join("data").exists());
        fs::remove_dir_all(&torn).unwrap();
        node.unused_goes().await;
        node.assert_clean();
    });
}

#[test]
fn nobody_is_told_to_unmount_by_hand_what_nobody_can_name_and_a_pod_uses_or_may_use() {
    on_node(Known::default(), async |node| {
        let published = stage_and_publish(&node.space.root, UID, &PV).unwrap();
        let (global, own) = (published.staging.unwrap(), published.volume.join("vol_data.json"));
        fs::write(global.with_file_name("vol_data.json"), "").unwrap();
        assert_eq!(node.unused_fails().await, "", "the pod's file tells which it is");
        fs::write(&own, "{").unwrap();
        let told = node.unused_fails().await;
        assert!(!told.contains("by hand") && told.contains(UID), "{told}");
        assert!(
            told.contains("cut off") && told.contains(own.to_str().unwrap()),
            "{told}"
        );
        fs::remove_file(&own).unwrap();
        assert!(node.unused_fails().await.contains("there is none"));
        assert!(published.target.join("data").exists());

        umount(&published.target).unwrap();
        fs::remove_dir_all(&published.volume).unwrap();
        bind(&global, &node.space.outside);
        let told = node.unused_fails().await;
        assert!(!told.contains("by hand") && told.contains("outside"), "{told}");
        umount(&node.space.outside).unwrap();
        let told = node.unused_fails().await;
        assert!(told.contains("by hand"), "{told}");
    });
}

#[test]
fn nobody_is_told_to_unmount_a_device_by_hand_that_a_pod_has() {
    on_node(Known::default(), async |node| {
        let block = stage_and_publish_block(&node.space.root, UID, &PV, &disk(node.space), false).unwrap();
        fs::write(block.data.join("vol_data.json"), "").unwrap();
        let told = node.unused_fails().await;
        assert!(!told.contains("by hand") && told.contains(UID), "{told}");
    });
}

#[test]
fn who_holds_a_volume_that_its_driver_calls_busy_is_named() {
    let _crowd = nobody_forks();
    on_node(Known::with(&[IN_USE]), async |node| {
        let published = node.publish();
        let sleep = |place: &Path| Command::new("sleep").arg("1000").current_dir(place).spawn().unwrap();
        for place in [published.target, published.staging.unwrap()] {
            let mut holder = sleep(&place);
            let why = node.fails().await;
            holder.kill().unwrap();
            holder.wait().unwrap();
            let named = format!("process {} \"sleep\"", holder.id());
            assert!(why.contains("busy") && why.contains(&named), "{why}");
        }
        node.goes_soon().await;
        node.assert_clean();
    });
}

#[test]
fn a_volume_that_is_published_by_a_link_is_unpublished_by_its_driver_and_the_link_is_never_followed() {
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
                node.driver.behave_for(1, Conduct::Pretends);
            }
            node.goes().await;
            assert_eq!(node.calls(), ["unpublish", "unstage"]);
            assert!(!published.target.is_symlink());
            assert_eq!(fs::read_to_string(volume.join("file")).unwrap(), "precious");
            node.assert_clean();
        });
    }
}

#[test]
fn a_volume_that_its_driver_does_not_know_is_gone_once_nothing_of_it_is_mounted() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let published = node.publish();
        let unknown = Conduct::Fails(Code::NotFound, "no such volume".to_owned());
        node.driver.behave_if(|call| *call != CsiCall::Capabilities, unknown);
        for place in [&published.target, published.staging.as_ref().unwrap()] {
            let why = node.fails().await;
            assert!(why.contains("NotFound") && why.contains(&format!("{place:?}")), "{why}");
            assert_eq!(node.known.has_in_use(), [IN_USE]);
            umount(place).unwrap();
        }
        node.goes().await;
        node.assert_clean();
    });
}

#[test]
fn a_volume_that_its_driver_does_not_take_away_goes_without_it_when_that_is_approved_and_nothing_is_mounted() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let published = node.publish();
        node.driver.behave(Conduct::Fails(Code::Internal, "no".to_owned()));
        let mut approved = BTreeSet::new();
        for place in [&published.target, published.staging.as_ref().unwrap()] {
            let tear_down = async |approved: &BTreeSet<String>| {
                tear_down_approved(&node.space.pod, &node.storage, Arc::new(approved.clone())).await
            };
            let faults = tear_down(&approved).await.unwrap_err();
            assert!(
                matches!(&faults[0].cause, Cause::Message(why) if why.contains("Internal")),
                "{faults:?}"
            );
            umount(place).unwrap();
            let faults = tear_down(&approved).await.unwrap_err();
            let Cause::DriverFailed { volume, .. } = &faults[0].cause else {
                panic!("{faults:?}");
            };
            approved.insert(volume.clone());
            assert_eq!(node.known.has_in_use(), [IN_USE]);
            if approved.len() == 2 {
                assert_eq!(tear_down(&approved).await.unwrap().withheld, 0);
            }
        }
        node.assert_clean();
    });
}

#[test]
fn a_directory_of_another_pod_that_cannot_be_looked_into_is_named_with_what_helps() {
    on_node(Known::with(&[IN_USE]), async |node| {
        node.publish();
        let other = node.space.another_pod();
        bind(other.path(), other.path());
        let why = node.fails().await;
        for words in [
            other.path().to_str().unwrap(),
            "nobody can tell whether the pod of that directory",
            "unmount there",
        ] {
            assert!(why.contains(words), "{words:?} is not in {why}");
        }
        assert!(!node.calls().contains(&"unstage"));
        umount(other.path()).unwrap();
        node.goes().await;
        node.assert_clean();
    });
}

/// A volume on a device, staged and published: what lies in memory cannot be attached elsewhere.
fn on_device(node: &Node<'_>, pv: &Pv<'_>) -> PathBuf {
    let published = stage_and_publish(&node.space.root, UID, pv).unwrap();
    let staging = published.staging.unwrap();
    for place in [&published.target, &staging] {
        umount(place).unwrap();
    }
    let image = disk(node.space);
    let run = |name: &str, arguments: &[&OsStr]| {
        assert!(Command::new(name).args(arguments).status().unwrap().success(), "{name}");
    };
    run("mkfs.ext2", &["-q".as_ref(), "-F".as_ref(), image.as_os_str()]);
    run(
        "mount",
        &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), staging.as_os_str()],
    );
    bind(&staging, &published.target);
    staging
}

/// A process in a mount namespace of its own, which follows ours or does not.
async fn unshared(propagation: &str) -> Child {
    let keeper = Command::new("unshare")
        .args(["--mount", "--propagation", propagation, "sleep", "1000"])
        .spawn()
        .unwrap();
    let comm = format!("/proc/{}/comm", keeper.id());
    while fs::read_to_string(&comm).unwrap().trim() != "sleep" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    keeper
}

fn end(mut keeper: Child) {
    keeper.kill().unwrap();
    keeper.wait().unwrap();
}

#[test]
fn a_volume_that_another_namespace_would_keep_mounted_is_not_unstaged_and_one_that_goes_along_is() {
    let _crowd = nobody_forks();
    // A handle of its own: other tests see that namespace, too.
    const KEPT: Pv<'_> = Pv {
        name: "pv-followed",
        handle: "vol/followed",
        ..PV
    };
    for (propagation, is_kept) in [("private", true), ("slave", false), ("shared", false)] {
        on_node(
            Known::with(&["kubernetes.io/csi/csi.example.com^vol/followed"]),
            async move |node| {
                on_device(node, &KEPT);
                let keeper = unshared(propagation).await;
                if is_kept {
                    let told = node.fails().await;
                    let asked = node.calls().contains(&"unstage");
                    let kept = format!("would stay mounted in the mount namespace of process {}", keeper.id());
                    end(keeper);
                    assert!(told.contains(&kept) && !asked, "{told}");
                    while node.tear_down().await.is_err() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                } else {
                    let done = node.tear_down().await;
                    end(keeper);
                    assert_eq!(done.unwrap().withheld, 0);
                }
                node.assert_clean();
                nothing_is_mounted(node);
            },
        );
    }
}

#[test]
fn volume_with_a_file_open_on_a_detached_mount_may_not_be_detached_from_the_node() {
    let _crowd = nobody_forks();
    const KEPT: Pv<'_> = Pv {
        name: "pv-detached",
        handle: "vol/detached",
        ..PV
    };
    const KEPT_IN_USE: &str = "kubernetes.io/csi/csi.example.com^vol/detached";
    on_node(Known::with(&[KEPT_IN_USE]), async |node| {
        let staging = on_device(node, &KEPT);
        // As a subPath that is made anew while the container holds the old one.
        let elsewhere = node.space.outside.join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        bind(&staging, &elsewhere);
        write(&elsewhere.join("file"), "precious");
        let open = fs::File::open(elsewhere.join("file")).unwrap();
        umount2(&elsewhere, MntFlags::MNT_DETACH).unwrap();
        for _ in 0..2 {
            let told = node.fails().await;
            assert!(told.contains("though no mount table shows it"), "{told}");
            assert_eq!(node.known.has_in_use(), [KEPT_IN_USE]);
        }
        drop(open);
        node.goes_soon().await;
        node.assert_clean();
        nothing_is_mounted(node);
    });
}

#[test]
fn volume_may_be_detached_though_another_disk_has_got_its_device_number() {
    let _crowd = nobody_forks();
    const OLD: Pv<'_> = Pv {
        name: "pv-old-number",
        handle: "vol/old-number",
        ..PV
    };
    on_node(
        Known::with(&["kubernetes.io/csi/csi.example.com^vol/old-number"]),
        async |node| {
            let staging = on_device(node, &OLD);
            write(&staging.join("file"), "precious");
            let elsewhere = node.space.outside.join("elsewhere");
            fs::create_dir(&elsewhere).unwrap();
            bind(&staging, &elsewhere);
            let open = fs::File::open(elsewhere.join("file")).unwrap();
            umount2(&elsewhere, MntFlags::MNT_DETACH).unwrap();
            let number = nix::sys::stat::minor(open.metadata().unwrap().dev());
            node.fails().await;
            // The kernel detaches the loop device with its last file. The next disk gets its number.
            drop(open);
            let device = format!("/dev/loop{number}");
            let attach = || {
                Command::new("losetup")
                    .arg(&device)
                    .arg(disk(node.space))
                    .output()
                    .unwrap()
            };
            while !attach().status.success() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            for (name, arguments) in [
                ("mkfs.ext2", vec!["-q".as_ref(), device.as_ref()]),
                ("mount", vec![device.as_ref(), elsewhere.as_os_str()]),
                // With the mount.
                ("losetup", vec!["-d".as_ref(), device.as_ref()]),
            ] {
                assert!(Command::new(name).args(arguments).status().unwrap().success(), "{name}");
            }
            node.goes().await;
            umount(&elsewhere).unwrap();
            node.assert_clean();
        },
    );
}

#[test]
fn an_agent_that_starts_anew_finds_who_keeps_a_volume_mounted_in_another_namespace() {
    let _crowd = nobody_forks();
    // A handle of its own: other tests see that namespace, too.
    const KEPT: Pv<'_> = Pv {
        name: "pv-kept",
        handle: "vol/kept",
        ..PV
    };
    const KEPT_IN_USE: &str = "kubernetes.io/csi/csi.example.com^vol/kept";
    on_node(Known::with(&[KEPT_IN_USE]), async |node| {
        let staging = on_device(node, &KEPT);
        let keeper = unshared("private").await;
        // Unstaged by a kubelet, which looks into no other namespace, and which died then.
        for place in node.space.mounted().iter().chain([&staging]) {
            umount(place).unwrap();
        }
        let kept = format!("mount namespace of process {}", keeper.id());
        let mut told = vec![node.fails().await];
        node.restart();
        told.push(node.fails().await);
        node.restart();
        told.push(node.unused_fails().await);
        let in_use = node.known.has_in_use();
        end(keeper);
        assert!(told[..2].iter().all(|told| told.contains(&kept)), "{told:?}");
        assert_eq!(told[2], "", "the pod is not done with it");
        assert_eq!(in_use, [KEPT_IN_USE]);
        // The kernel takes the namespace away a moment later.
        while node.tear_down().await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        node.assert_clean();
        nothing_is_mounted(node);
    });
}
