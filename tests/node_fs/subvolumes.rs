//! btrfs subvolumes: each has its own device number on the mount of its parent.

use std::{ffi::OsStr, fs, path::Path};

use nix::mount::{MntFlags, umount, umount2};
use pod_teardown::{
    node::{dirs::Dir, effects::Effects, fault::Cause},
    teardown::volumes::tear_down_volumes,
};

use testbed::drivers::csi_volumes::{Pv, stage_and_publish};

use crate::{
    crowd::no_forks,
    csi_users::stays_in_use_while,
    images::{run, with_pods_on},
    node::{Known, PV, on_node},
    space::{Space, UID, bind, block_on, write},
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
        // Some nested deeper than the walk descends, and a read-only one.
        subvolume(&volume.join("a"));
        write(&volume.join("a").join("d/".repeat(60)).join("file"), "");
        subvolume(&volume.join("a").join("d/".repeat(30)).join("b"));
        let inner = volume.join("a").join("d/".repeat(30)).join("b");
        write(&inner.join("d/".repeat(60)).join("file"), "");
        subvolume(&inner.join("d/d/c"));
        write(&inner.join("d/d/c/file"), "");
        let (from, to) = (volume.join("a"), volume.join("snapshots/a"));
        fs::create_dir(volume.join("snapshots")).unwrap();
        let words: [&OsStr; 3] = ["subvolume".as_ref(), "snapshot".as_ref(), "-r".as_ref()];
        run(
            "btrfs",
            &[words[0], words[1], words[2], from.as_os_str(), to.as_os_str()],
        );
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
        assert_eq!(fs::read_to_string(precious.join("data")).unwrap(), "precious");
        umount(&mounted).unwrap();
    });
}

/// The kernel shows it with a device number of its own, and lists it by the number of its disk.
#[test]
fn btrfs_of_a_csi_volume_stays_in_use_while_a_file_is_open_on_its_detached_mount() {
    let _crowd = no_forks();
    const VOLUME: Pv<'_> = Pv {
        name: "pv-btrfs",
        handle: "vol/btrfs",
        ..PV
    };
    const VOLUME_IN_USE: &str = "kubernetes.io/csi/csi.example.com^vol/btrfs";
    on_node(Known::with(&[VOLUME_IN_USE]), async |node| {
        let published = stage_and_publish(&node.space.root, UID, &VOLUME).unwrap();
        let staging = published.staging.unwrap();
        for path in [&published.target, &staging] {
            umount(path).unwrap();
        }
        let image = node.space.outside.join("btrfs");
        fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
        run("mkfs.btrfs", &["-q".as_ref(), image.as_os_str()]);
        let arguments = ["-o".as_ref(), "loop".as_ref(), image.as_os_str(), staging.as_os_str()];
        run("mount", &arguments);
        bind(&staging, &published.target);
        let elsewhere = node.space.outside.join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        bind(&staging, &elsewhere);
        write(&elsewhere.join("file"), "precious");
        let open = fs::File::open(elsewhere.join("file")).unwrap();
        umount2(&elsewhere, MntFlags::MNT_DETACH).unwrap();
        stays_in_use_while(node, VOLUME_IN_USE, open, "by /sys/fs/btrfs/").await;
    });
}
