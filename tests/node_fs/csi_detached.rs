//! CSI volumes whose file system is still active on a detached mount: they stay in use.

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
    process::Command,
    sync::Arc,
    time::Duration,
};

use nix::mount::{MntFlags, umount, umount2};
use pod_teardown::{node::effects::Effects, teardown::volumes::storage::Storage};
use testbed::drivers::{Behavior, CsiCall, csi_volumes::Pv};
use tonic::Code;

use crate::{
    crowd::no_forks,
    csi::disk,
    csi_users::{nothing_is_mounted, on_device, stays_in_use_while},
    node::{Known, Node, PV, on_node},
    space::{bind, soon, write},
};

/// A file that is open on a detached mount of the volume, like on a subPath that is recreated while the container uses the old
/// one.
fn open_on_detached_mount(node: &Node<'_>, staging: &Path) -> fs::File {
    let elsewhere = node.space.outside.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    bind(staging, &elsewhere);
    write(&elsewhere.join("file"), "precious");
    let open = fs::File::open(elsewhere.join("file")).unwrap();
    umount2(&elsewhere, MntFlags::MNT_DETACH).unwrap();
    open
}

#[test]
fn volume_with_a_file_open_on_a_detached_mount_may_not_be_detached_from_the_node() {
    let _crowd = no_forks();
    const VOLUME: Pv<'_> = Pv {
        name: "pv-detached",
        handle: "vol/detached",
        ..PV
    };
    const VOLUME_IN_USE: &str = "kubernetes.io/csi/csi.example.com^vol/detached";
    on_node(Known::with(&[VOLUME_IN_USE]), async |node| {
        let staging = on_device(node, &VOLUME);
        let open = open_on_detached_mount(node, &staging);
        stays_in_use_while(node, VOLUME_IN_USE, open, "though no mount table shows it").await;
    });
}

#[test]
fn volume_whose_files_are_gone_stays_in_use_while_its_detached_file_system_is_active() {
    let _crowd = no_forks();
    const VOLUME: Pv<'_> = Pv {
        name: "pv-without-files",
        handle: "vol/without-files",
        ..PV
    };
    const VOLUME_IN_USE: &str = "kubernetes.io/csi/csi.example.com^vol/without-files";
    on_node(Known::with(&[VOLUME_IN_USE]), async |node| {
        let staging = on_device(node, &VOLUME);
        let open = open_on_detached_mount(node, &staging);
        node.fails().await;
        nothing_is_mounted(node);
        // The kubelet's files, which the driver and a user have removed.
        fs::remove_dir_all(staging.parent().unwrap()).unwrap();
        fs::remove_dir_all(node.space.pod.path()).unwrap();
        node.restart();
        let text = node.unused_fails().await;
        assert!(text.contains("though no mount table shows it"), "{text}");
        assert_eq!(node.known.has_in_use(), [VOLUME_IN_USE]);
        drop(open);
        while !node.known.has_in_use().is_empty() {
            node.unused_fails().await;
        }
    });
}

#[test]
fn volume_stays_in_use_until_the_last_writes_of_its_detached_file_system_are_done() {
    let _crowd = no_forks();
    const VOLUME: Pv<'_> = Pv {
        name: "pv-last-writes",
        handle: "vol/last-writes",
        ..PV
    };
    const VOLUME_IN_USE: &str = "kubernetes.io/csi/csi.example.com^vol/last-writes";
    on_node(Known::with(&[VOLUME_IN_USE]), async |node| {
        let staging = on_device(node, &VOLUME);
        let open = open_on_detached_mount(node, &staging);
        let device = open.metadata().unwrap().dev();
        node.fails().await;
        // The kernel's numbers at a moment when the file system is no longer listed and its device is still written.
        let sys = node.space.outside.join("sys");
        let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
        let stat = sys.join("devices/loop/stat");
        fs::create_dir_all(sys.join("dev/block")).unwrap();
        symlink("../../devices/loop", sys.join(format!("dev/block/{major}:{minor}"))).unwrap();
        write(&stat, "0 0 0 0 5 0 40 0 1 0 0 0 0 0 0 0 0");
        drop(open);
        let storage = Arc::into_inner(std::mem::replace(
            &mut node.storage,
            node.space.storage(&Effects::ungated()),
        ));
        node.storage = Arc::new(Storage {
            sys_block: sys.join("block"),
            ..storage.unwrap()
        });
        // A process that another test starts has the open file for a moment.
        soon(async || {
            let text = node.fails().await;
            if text.contains("was written") {
                Ok(())
            } else {
                Err(text)
            }
        })
        .await;
        assert_eq!(node.known.has_in_use(), [VOLUME_IN_USE]);
        write(&stat, "0 0 0 0 6 0 48 0 0 0 0 0 0 0 0 0 0");
        node.is_torn_down_soon().await;
        node.assert_clean();
        nothing_is_mounted(node);
    });
}

#[test]
fn volume_that_its_driver_unmounted_before_it_failed_stays_in_use_while_a_file_on_it_is_open() {
    let _crowd = no_forks();
    const VOLUME: Pv<'_> = Pv {
        name: "pv-failed-late",
        handle: "vol/failed-late",
        ..PV
    };
    const VOLUME_IN_USE: &str = "kubernetes.io/csi/csi.example.com^vol/failed-late";
    on_node(Known::with(&[VOLUME_IN_USE]), async |node| {
        let staging = on_device(node, &VOLUME);
        let open = open_on_detached_mount(node, &staging);
        let is_unstage = |call: &CsiCall| matches!(call, CsiCall::Unstage { .. });
        node.driver
            .behave_if(is_unstage, Behavior::Fails(Code::Internal, "no".to_owned()));
        node.fails().await;
        // The call has unmounted it, and failed after that.
        umount(&staging).unwrap();
        node.driver.behave_if(is_unstage, Behavior::Well);
        for _ in 0..2 {
            node.restart();
            let text = node.fails().await;
            assert!(text.contains("though no mount table shows it"), "{text}");
            assert_eq!(node.known.has_in_use(), [VOLUME_IN_USE]);
        }
        drop(open);
        node.is_torn_down_soon().await;
        node.assert_clean();
        nothing_is_mounted(node);
    });
}

#[test]
fn volume_may_be_detached_though_another_disk_has_got_its_device_number() {
    let _crowd = no_forks();
    const OLD: Pv<'_> = Pv {
        name: "pv-old-number",
        handle: "vol/old-number",
        ..PV
    };
    on_node(
        Known::with(&["kubernetes.io/csi/csi.example.com^vol/old-number"]),
        async |node| {
            let staging = on_device(node, &OLD);
            let open = open_on_detached_mount(node, &staging);
            let number = nix::sys::stat::minor(open.metadata().unwrap().dev());
            node.fails().await;
            // The kernel detaches the loop device when its last file is closed. The next disk gets its number.
            drop(open);
            let device = format!("/dev/loop{number}");
            let elsewhere = node.space.outside.join("elsewhere");
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
            node.is_torn_down().await;
            umount(&elsewhere).unwrap();
            node.assert_clean();
        },
    );
}
