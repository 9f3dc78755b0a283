//! CSI volumes with a driver that really mounts, and behaves correctly or not.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pod_teardown::{
    model::blocked::Blocked,
    node::{effects::Effects, pod_dir::PodDir},
    teardown::volumes::storage::Storage,
};
use testbed::drivers::{
    Behavior, CsiDriver,
    csi_volumes::{Pv, publish_ephemeral, stage_and_publish, stage_and_publish_block, staging},
};

use crate::{
    node::{DRIVER, IN_USE, Known, PV, on_node},
    space::{Space, UID, assert_precious, bind, tear_down_volumes, write},
};

fn other_pod(space: &Space) -> PodDir {
    space.another_pod()
}

#[test]
fn volume_is_unpublished_then_unstaged_then_removed_from_volumes_in_use() {
    on_node(Known::with(&[IN_USE, "kubernetes.io/csi/other^x"]), async |node| {
        let published = node.publish();
        let sub = node.space.subpath("pv-1", 0, &published.target);
        node.is_torn_down().await;
        assert_eq!(node.calls(), ["unpublish", "unstage"]);
        assert_eq!(node.known.has_in_use(), ["kubernetes.io/csi/other^x"]);
        assert!(!sub.exists() && !published.staging.unwrap().parent().unwrap().exists());
        assert_eq!(node.tear_down().await, Ok(()));
    });
}

#[test]
fn simultaneous_teardown_of_two_pods_leaves_nothing_staged() {
    on_node(Known::with(&[IN_USE]), async |node| {
        node.publish();
        let other = other_pod(node.space);
        stage_and_publish(&node.space.root, other.uid(), &PV).unwrap();
        node.driver.behave(Behavior::Slow(Duration::from_millis(50)));
        let (one, two) = tokio::join!(node.tear_down(), tear_down_volumes(&other, &node.storage));
        one.unwrap();
        two.unwrap();
        assert_eq!(node.calls(), ["unpublish", "unpublish", "unstage"]);
        node.assert_clean();
    });
}

#[test]
fn driver_that_reports_success_with_a_mount_left_is_called_again() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let published = node.publish();
        node.driver.behave(Behavior::Pretends);
        for _ in 0..2 {
            let why = node.fails().await;
            assert!(why.contains("still mounted") && why.contains(DRIVER), "{why}");
        }
        assert_eq!(node.calls(), ["unpublish", "unpublish"]);
        assert_eq!(node.known.has_in_use(), [IN_USE], "it may be written to yet");
        assert!(published.target.join("data").exists());

        // The same for unstage.
        node.driver.behave_for(1, Behavior::Well);
        let why = node.fails().await;
        assert!(why.contains("globalmount") && why.contains("still mounted"), "{why}");
        assert_eq!(node.known.has_in_use(), [IN_USE]);
        node.driver.behave(Behavior::Well);
        node.is_torn_down().await;
        node.assert_clean();
    });
}

#[test]
fn blocked_removal_of_a_staging_directory_keeps_the_pod() {
    on_node(Known::with(&[IN_USE]), async |node| {
        node.publish();
        let (known, shuts) = (node.known.clone(), AtomicBool::new(true));
        // For one moment, after the volume has left the list.
        let gate = move || {
            let shut = known.has_in_use().is_empty() && shuts.swap(false, Ordering::Relaxed);
            let reason = "whether a kubelet works here is not known".to_owned();
            if shut { Err(Blocked::Other(reason)) } else { Ok(()) }
        };
        let effects = Effects::new(Arc::new(gate));
        node.storage = Arc::new(Storage {
            api: Arc::new(node.known.clone()),
            ..Arc::into_inner(node.space.storage(&effects)).unwrap()
        });
        let why = node.fails().await;
        assert!(why.contains("globalmount") && why.contains("blocked"), "{why}");
        node.is_torn_down().await;
        node.assert_clean();
    });
}

#[test]
fn hanging_driver_blocks_no_other_volume() {
    on_node(Known::with(&[IN_USE]), async |node| {
        node.publish();
        let other = other_pod(node.space);
        let quick = CsiDriver::start(&node.space.root, "quick.example.com").unwrap();
        let pv = Pv {
            name: "pv-2",
            driver: quick.name(),
            handle: "2",
            staged: true,
        };
        stage_and_publish(&node.space.root, other.uid(), &pv).unwrap();
        node.driver.behave(Behavior::Hangs);
        tokio::select! {
            done = node.tear_down() => panic!("{done:?}"),
            done = tear_down_volumes(&other, &node.storage) => done.unwrap(),
        }
        node.driver.behave(Behavior::Well);
        node.is_torn_down().await;
        node.assert_clean();
    });
}

#[test]
fn truncated_file_is_replaced_by_the_persistent_volume() {
    for torn in ["", "{\"driverName\":\"csi.exam", "[]", "\0\0\0\0"] {
        let known = Known {
            volume: Some((DRIVER.into(), PV.handle.into())),
            ..Known::with(&[IN_USE])
        };
        on_node(known, async move |node| {
            let published = node.publish();
            fs::write(published.volume.join("vol_data.json"), torn).unwrap();
            node.is_torn_down().await;
            assert_eq!(node.calls(), ["unpublish", "unstage"], "{torn:?}");
            node.assert_clean();
        });
    }
}

#[test]
fn truncated_file_of_an_unstaged_volume_is_replaced_by_the_persistent_volume() {
    let known = Known {
        volume: Some((DRIVER.into(), PV.handle.into())),
        ..Known::with(&[IN_USE])
    };
    on_node(known, async |node| {
        node.driver.stages(false);
        let published = stage_and_publish(&node.space.root, UID, &Pv { staged: false, ..PV }).unwrap();
        fs::write(published.volume.join("vol_data.json"), "{").unwrap();
        node.is_torn_down().await;
        assert_eq!(node.calls(), ["unpublish"]);
        node.assert_clean();
    });
}

#[test]
fn mount_with_unknown_driver_keeps_the_pod_with_a_remedy() {
    on_node(Known::default(), async |node| {
        let published = stage_and_publish(&node.space.root, UID, &Pv { staged: false, ..PV }).unwrap();
        fs::write(published.volume.join("vol_data.json"), "").unwrap();
        let why = node.fails().await;
        assert!(why.contains("unmounted by hand"), "{why}");
        nix::mount::umount(&published.target).unwrap();
        node.is_torn_down().await;
        assert_eq!(node.calls(), [""; 0]);
    });
}

#[test]
fn volume_of_a_running_pod_is_never_unstaged() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let published = node.publish();
        node.unused_is_torn_down().await;
        assert_eq!(node.calls(), [""; 0]);
        // Even if its file is invalid: it may be that volume's.
        fs::write(published.volume.join("vol_data.json"), "").unwrap();
        let text = node.unused_fails().await;
        assert!(text.contains("may use it"), "{text}");
        assert_eq!(node.calls(), [""; 0]);
        // Even if it has lost its directory, but not its mount.
        assert_eq!(node.known.has_in_use(), [IN_USE]);
        assert_precious(published.target.join("data"));
    });
}

#[test]
fn unstaged_volume_is_removed_from_volumes_in_use() {
    on_node(
        Known::with(&[IN_USE, "kubernetes.io/csi/d^gone", "kubernetes.io/iscsi/x"]),
        async |node| {
            let published = node.publish();
            // As long as one file cannot be read, it may belong to any volume.
            let file = published.volume.join("vol_data.json");
            let whole = fs::read(&file).unwrap();
            fs::write(&file, "").unwrap();
            let text = node.unused_fails().await;
            assert!(text.contains("may use it"), "{text}");
            assert!(
                text.contains("d^gone") && text.contains(file.to_str().unwrap()),
                "{text}"
            );
            assert_eq!(node.known.has_in_use().len(), 3);
            fs::write(&file, whole).unwrap();
            node.unused_is_torn_down().await;
            assert_eq!(node.known.has_in_use(), [IN_USE, "kubernetes.io/iscsi/x"]);
        },
    );
}

#[test]
fn unused_block_volume_is_unstaged() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let block = stage_and_publish_block(&node.space.root, UID, &PV, &disk(node.space), false).unwrap();
        node.unused_is_torn_down().await;
        assert_eq!(node.calls(), [""; 0], "a pod has it");
        for mounted in [&block.device, &block.target] {
            nix::mount::umount(mounted).unwrap();
            fs::remove_file(mounted).unwrap();
        }
        fs::remove_file(&block.link).unwrap();
        node.unused_is_torn_down().await;
        assert_eq!(node.calls(), ["unstage"]);
        assert_eq!(nothing_of_the_device(&node.space.root), Vec::<PathBuf>::new());
        node.assert_clean();
    });
}

#[test]
fn staged_volume_mounted_elsewhere_is_not_unstaged_and_the_path_is_named() {
    on_node(Known::with(&[IN_USE]), async |node| {
        node.publish();
        let elsewhere = node.space.outside.join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        bind(&staging(&node.space.root, &PV), &elsewhere);
        let why = node.fails().await;
        assert!(why.contains("elsewhere"), "{why}");
        assert_eq!(node.calls(), ["unpublish"]);
        assert_eq!(node.known.has_in_use(), [IN_USE]);
    });
}

#[test]
fn volumes_on_one_network_file_system_do_not_wait_for_each_other() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let first = node.publish();
        let second = Pv {
            name: "pv-2",
            handle: "vol/2",
            ..PV
        };
        let (other, of_second) = (other_pod(node.space), staging(&node.space.root, &second));
        fs::create_dir_all(&of_second).unwrap();
        bind(first.staging.as_ref().unwrap(), &of_second);
        let data = serde_json::json!({ "driverName": DRIVER, "volumeHandle": second.handle });
        fs::write(of_second.with_file_name("vol_data.json"), data.to_string()).unwrap();
        let of_other = stage_and_publish(&node.space.root, other.uid(), &second).unwrap();
        node.is_torn_down().await;
        assert_eq!(node.calls(), ["unpublish", "unstage"]);
        assert_precious(of_other.target.join("data"));
        tear_down_volumes(&other, &node.storage).await.unwrap();
        node.assert_clean();
        assert!(!of_second.exists());
    });
}

#[test]
fn inline_volume_is_unpublished_and_never_unstaged() {
    on_node(Known::default(), async |node| {
        let published = publish_ephemeral(&node.space.root, UID, "scratch", DRIVER).unwrap();
        node.is_torn_down().await;
        assert_eq!(node.calls(), ["unpublish"]);
        assert!(!published.volume.exists());
    });
}

#[test]
fn files_left_by_a_driver_under_its_mount_are_kept_and_keep_the_pod() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let published = node.publish();
        let odd = published.volume.join("left-by-the-driver");
        fs::write(&odd, "precious").unwrap();
        let why = node.fails().await;
        assert!(why.contains("pv-1"), "{why}");
        assert_precious(&odd);
    });
}

#[test]
fn hostile_names_in_the_file_are_refused() {
    on_node(Known::default(), async |node| {
        let dir = node.space.volume("csi", "pv-1");
        write(&node.space.outside.join("keep/vol_data.json"), "precious");
        for (driver, handle) in [("../../../outside/keep", "x"), ("a/b", ".."), ("", ""), ("..", "..")] {
            let data = serde_json::json!({ "driverName": driver, "volumeHandle": handle });
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("vol_data.json"), data.to_string()).unwrap();
            node.is_torn_down().await;
            assert!(!dir.exists());
        }
        symlink(node.space.outside.join("keep"), &dir).unwrap();
        let why = node.fails().await;
        assert!(why.contains("pv-1"), "{why}");
        assert_eq!(node.calls(), [""; 0]);
        assert!(node.space.outside.join("keep/vol_data.json").exists());
    });
}

pub fn disk(space: &Space) -> PathBuf {
    let file = space.outside.join("disk");
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    file
}

pub fn nothing_of_the_device(root: &Path) -> Vec<PathBuf> {
    let all = root.join("plugins/kubernetes.io/csi/volumeDevices");
    let below = |dir: &str| fs::read_dir(all.join(dir)).into_iter().flatten().flatten();
    below("publish")
        .chain(below("staging"))
        .chain(below("pv-1"))
        .map(|it| it.path())
        .collect()
}

#[test]
fn block_volume_is_torn_down_completely_and_its_data_is_kept() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let disk = disk(node.space);
        let block = stage_and_publish_block(&node.space.root, UID, &PV, &disk, true).unwrap();
        let lock = block.lock.as_ref().unwrap();
        node.is_torn_down().await;
        assert!(!lock.is_attached() && !block.link.is_symlink());
        assert_eq!(node.calls(), ["unpublish", "unstage"]);
        assert_eq!(nothing_of_the_device(&node.space.root), Vec::<PathBuf>::new());
        assert_eq!(fs::read(disk).unwrap(), vec![7; 1 << 20]);
        node.assert_clean();
    });
}

#[test]
fn block_volume_of_two_pods_stays_staged_until_the_second_terminates() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let (disk, other) = (disk(node.space), other_pod(node.space));
        stage_and_publish_block(&node.space.root, UID, &PV, &disk, true).unwrap();
        let of_other = stage_and_publish_block(&node.space.root, other.uid(), &PV, &disk, true).unwrap();
        node.is_torn_down().await;
        assert_eq!(node.calls(), ["unpublish"]);
        assert!(of_other.lock.as_ref().unwrap().is_attached());
        assert_eq!(node.known.has_in_use(), [IN_USE]);
        tear_down_volumes(&other, &node.storage).await.unwrap();
        assert_eq!(node.calls(), ["unpublish", "unpublish", "unstage"]);
        assert_eq!(nothing_of_the_device(&node.space.root), Vec::<PathBuf>::new());
        node.assert_clean();
    });
}

#[test]
fn block_volume_still_mapped_after_success_keeps_the_pod() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let block = stage_and_publish_block(&node.space.root, UID, &PV, &disk(node.space), false).unwrap();
        node.driver.behave(Behavior::Pretends);
        let why = node.fails().await;
        assert!(why.contains("still mounted"), "{why}");
        assert!(block.target.exists() && block.link.is_symlink());
        assert_eq!(node.known.has_in_use(), [IN_USE]);
        node.driver.behave(Behavior::Well);
        node.is_torn_down().await;
        node.assert_clean();
    });
}

#[test]
fn block_volume_without_link_or_map_after_a_crash_is_found() {
    for lost in ["link", "map", "pod"] {
        on_node(Known::with(&[IN_USE]), async move |node| {
            let block = stage_and_publish_block(&node.space.root, UID, &PV, &disk(node.space), false).unwrap();
            match lost {
                "link" => fs::remove_file(&block.link).unwrap(),
                "pod" => fs::remove_dir_all(node.space.pod.path()).unwrap(),
                _ => {
                    fs::remove_file(&block.link).unwrap();
                    nix::mount::umount(&block.device).unwrap();
                    fs::remove_file(&block.device).unwrap();
                }
            }
            node.is_torn_down().await;
            assert_eq!(node.calls(), ["unpublish", "unstage"], "{lost}");
            assert_eq!(nothing_of_the_device(&node.space.root), Vec::<PathBuf>::new());
            node.assert_clean();
        });
    }
}
