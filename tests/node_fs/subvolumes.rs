//! btrfs subvolumes: each has its own device number on the mount of its parent.

use std::{ffi::OsStr, fs, path::Path};

use nix::mount::umount;
use pod_teardown::{
    node::{dirs::Dir, effects::Effects, fault::Cause},
    teardown::volumes::tear_down_volumes,
};

use crate::{
    images::{run, with_pods_on},
    space::{Space, bind, block_on, write},
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
