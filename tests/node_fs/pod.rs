//! A pod's directory without its volumes.

use std::fs;

use nix::sched::{CloneFlags, unshare};
use pod_teardown::{
    node::{effects::Effects, fault::Cause, kubelet_root::KubeletRoot, pod_dir::other_pods},
    teardown::{on_disk::DiskReport, pod_dir::remove_pod_dir},
};

use crate::{
    space::{Space, UID, bind, block_on, in_own_namespace, tmpfs, write},
    volumes::{of_each_kind, tear_down_cleanly},
};

fn remove(space: &Space) -> Result<DiskReport, Vec<pod_teardown::node::fault::Fault>> {
    block_on(remove_pod_dir(&space.pod, &space.mounts, &Effects::ungated()))
}

#[test]
fn directory_is_removed_after_its_volumes_and_other_pods_are_kept() {
    in_own_namespace(|space| {
        of_each_kind(space);
        write(&space.pod.path().join("userns"), "{}");
        let neighbour = space.root.join("pods/neighbour");
        write(&neighbour.join("etc-hosts"), "");
        tear_down_cleanly(space);
        assert!(remove(space).unwrap().removed > 4);
        assert!(!space.pod.path().exists() && neighbour.join("etc-hosts").exists());
        assert_eq!(
            remove(space),
            Ok(DiskReport::default()),
            "a second run has nothing to do"
        );
    });
}

#[test]
fn directory_with_a_volume_or_mount_is_refused() {
    in_own_namespace(|space| {
        write(&space.pod.path().join("etc-hosts"), "precious");
        let volume = space.volume("configmap", "c");
        let errors = remove(space).unwrap_err();
        assert_eq!((&errors[0].path, &errors[0].cause), (&volume, &Cause::StillThere));
        fs::remove_dir(&volume).unwrap();

        let bound = space.pod.path().join("plugins/p");
        fs::create_dir_all(&bound).unwrap();
        bind(&space.outside, &bound);
        assert_eq!(remove(space).unwrap_err()[0].path, bound);
        assert_eq!(
            fs::read_to_string(space.pod.path().join("etc-hosts")).unwrap(),
            "precious"
        );
    });
}

#[test]
fn pod_directory_that_is_a_mount_point_is_never_entered() {
    in_own_namespace(|space| {
        tmpfs(space.pod.path());
        write(&space.pod.path().join("etc-hosts"), "precious");
        assert_eq!(remove(space).unwrap_err()[0].cause, Cause::OtherFileSystem);
        assert_eq!(
            fs::read_to_string(space.pod.path().join("etc-hosts")).unwrap(),
            "precious"
        );
    });
}

#[test]
fn directories_of_other_pods_are_open_one_at_a_time() {
    in_own_namespace(|space| {
        unshare(CloneFlags::CLONE_FILES).unwrap();
        for pod in 0..500 {
            fs::create_dir(space.root.join(format!("pods/{pod}"))).unwrap();
        }
        let open = || fs::read_dir("/proc/thread-self/fd").unwrap().count();
        let (root, before) = (KubeletRoot::resolve(&space.root).unwrap(), open());
        let mut found = 0;
        for pod in other_pods(&root, UID).unwrap() {
            let _pod = pod.unwrap();
            assert!(open() <= before + 3, "{before} {}", open());
            found += 1;
        }
        assert_eq!(found, 500);
    });
}
