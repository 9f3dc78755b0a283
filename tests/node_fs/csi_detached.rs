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

use crate::{
    crowd::no_forks,
    csi::disk,
    csi_users::{nothing_is_mounted, on_device, stays_in_use_while},
    node::{Known, Node, another_volume, on_node},
    space::{bind, soon, write},
};

/// A file that is open on a detached mount of the volume, like on a subPath that is recreated while the container uses the old
/// one.
pub fn open_on_detached_mount(node: &Node<'_>, staging: &Path) -> fs::File {
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
    let (volume, in_use) = another_volume("detached");
    on_node(Known::with(&[&in_use]), async move |node| {
        let staging = on_device(node, &volume);
        let open = open_on_detached_mount(node, &staging);
        stays_in_use_while(node, &in_use, open, "though no mount table shows it").await;
    });
}

#[test]
fn volume_whose_files_are_gone_stays_in_use_while_its_detached_file_system_is_active() {
    let _crowd = no_forks();
    let (volume, in_use) = another_volume("without-files");
    on_node(Known::with(&[&in_use]), async move |node| {
        let staging = on_device(node, &volume);
        let open = open_on_detached_mount(node, &staging);
        node.fails().await;
        nothing_is_mounted(node);
        // The kubelet's files, which the driver and a user have removed.
        fs::remove_dir_all(staging.parent().unwrap()).unwrap();
        fs::remove_dir_all(node.space.pod.path()).unwrap();
        node.restart();
        let text = node.unused_fails().await;
        assert!(text.contains("though no mount table shows it"), "{text}");
        assert_eq!(node.known.has_in_use(), [&*in_use]);
        drop(open);
        while !node.known.has_in_use().is_empty() {
            node.unused_fails().await;
        }
    });
}

#[test]
fn volume_stays_in_use_until_the_last_writes_of_its_detached_file_system_are_done() {
    let _crowd = no_forks();
    let (volume, in_use) = another_volume("last-writes");
    on_node(Known::with(&[&in_use]), async move |node| {
        let staging = on_device(node, &volume);
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
        assert_eq!(node.known.has_in_use(), [&*in_use]);
        write(&stat, "0 0 0 0 6 0 48 0 0 0 0 0 0 0 0 0 0");
        node.is_torn_down_soon().await;
        node.assert_clean();
        nothing_is_mounted(node);
    });
}

#[test]
fn volume_may_be_detached_though_another_disk_has_got_its_device_number() {
    let _crowd = no_forks();
    let (volume, in_use) = another_volume("old-number");
    on_node(Known::with(&[&in_use]), async move |node| {
        let staging = on_device(node, &volume);
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
    });
}
