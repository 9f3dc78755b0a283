//! btrfs subvolumes: each has its own device number on the mount of its parent.

use std::{fs, path::Path};

use nix::mount::umount;
use pod_teardown::node::{dirs::Dir, effects::Effects, fault::Cause};

use crate::{
    crowd::no_forks,
    csi_detached::open_on_detached_mount,
    csi_users::{mounted_on, stays_in_use_while},
    images::{run, with_pods_on},
    node::{Known, another_volume, on_node},
    space::{Space, assert_precious, bind, block_on, tear_down_volumes, write},
};

fn subvolume(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    run("btrfs", &["subvolume".as_ref(), "create".as_ref(), path.as_os_str()]);
}

/// A btrfs below the directories of pods.
fn with_btrfs(test: impl FnOnce(&Space) + Send + 'static) {
    with_pods_on(&["mkfs.btrfs", "-q"], "loop", test);
}

#[test]
fn subvolumes_in_an_empty_dir_are_removed_with_it() {
    with_btrfs(|space| {
        let volume = space.volume("empty-dir", "data");
        // Some nested deeper than the walk descends.
        subvolume(&volume.join("a"));
        write(&volume.join("a").join("d/".repeat(60)).join("file"), "");
        subvolume(&volume.join("a").join("d/".repeat(30)).join("b"));
        let inner = volume.join("a").join("d/".repeat(30)).join("b");
        write(&inner.join("d/".repeat(60)).join("file"), "");
        subvolume(&inner.join("d/d/c"));
        write(&inner.join("d/d/c/file"), "");
        let storage = space.storage(&Effects::ungated());
        assert!(block_on(tear_down_volumes(&space.pod, &storage)).is_ok());
        assert!(!volume.exists());
    });
}

#[test]
fn mount_in_a_subvolume_is_not_entered() {
    with_btrfs(|space| {
        let volume = space.volume("empty-dir", "data");
        subvolume(&volume.join("a"));
        write(&volume.join("a/file"), "");
        let mounted = volume.join("a/mounted");
        fs::create_dir(&mounted).unwrap();
        // On the same file system, too.
        let precious = space.root.join("pods/precious");
        write(&precious.join("data"), "precious");
        bind(&precious, &mounted);
        let dir = Dir::open(volume.parent().unwrap()).unwrap().unwrap();
        let faults = dir.remove_tree("data".as_ref(), &Effects::ungated()).unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(faults[0].cause, Cause::Errno(nix::errno::Errno::EBUSY));
        assert!(faults[0].path.ends_with("mounted"), "{faults:?}");
        assert_precious(precious.join("data"));
        umount(&mounted).unwrap();
    });
}

/// The kernel shows it with a device number of its own, and lists it by the number of its disk.
#[test]
fn btrfs_of_a_csi_volume_stays_in_use_while_a_file_is_open_on_its_detached_mount() {
    let _crowd = no_forks();
    let (volume, in_use) = another_volume("btrfs");
    on_node(Known::with(&[&in_use]), async move |node| {
        let image = node.space.outside.join("btrfs");
        fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
        run("mkfs.btrfs", &["-q".as_ref(), image.as_os_str()]);
        let arguments = ["-o".as_ref(), "loop".as_ref(), image.as_os_str()];
        let staging = mounted_on(node, &volume, &arguments);
        let open = open_on_detached_mount(node, &staging);
        stays_in_use_while(node, &in_use, open, "by /sys/fs/btrfs/").await;
    });
}
