//! Volumes of a pod, in normal and in damaged states.

use std::{fs, path::PathBuf, sync::Arc};

use pod_teardown::{
    model::blocked::Blocked,
    node::{
        effects::Effects,
        fault::{Cause, Fault},
    },
};

use crate::space::{Space, UID, assert_precious, bind, block_on, in_own_namespace, tear_down_volumes, tmpfs, write};

pub fn tear_down(space: &Space) -> Result<(), Vec<Fault>> {
    tear_down_with(space, &Effects::ungated())
}

fn tear_down_with(space: &Space, effects: &Effects) -> Result<(), Vec<Fault>> {
    block_on(tear_down_volumes(&space.pod, &space.storage(effects)))
}

#[track_caller]
pub fn tear_down_cleanly(space: &Space) {
    tear_down(space).unwrap();
}

#[track_caller]
pub fn assert_removed(space: &Space) {
    assert_eq!(space.mounted(), Vec::<PathBuf>::new());
    assert_eq!(space.pod.leftovers(&space.mounts), Ok(vec![]));
    assert_eq!(tear_down(space), Ok(()), "it may be repeated");
}

/// A pod with one volume of each kind, mounted as a kubelet mounts it.
pub fn of_each_kind(space: &Space) {
    write(&space.volume("empty-dir", "disk").join("a/b/file"), "");
    space.marker("disk");
    for (plugin, name) in [
        ("empty-dir", "memory"),
        ("secret", "s"),
        ("projected", "p"),
        ("downward-api", "d"),
    ] {
        let dir = space.volume(plugin, name);
        tmpfs(&dir);
        write(&dir.join("..2026/file"), "");
        std::os::unix::fs::symlink("..2026", dir.join("..data")).unwrap();
        std::os::unix::fs::symlink("..data/file", dir.join("file")).unwrap();
        space.marker(&if plugin == "empty-dir" {
            name.to_owned()
        } else {
            format!("wrapped_{name}")
        });
    }
    let config = space.volume("configmap", "c");
    write(&config.join("..2026/file"), "");
    std::os::unix::fs::symlink("..2026", config.join("..data")).unwrap();
    space.marker("wrapped_c");
    write(&space.pod.path().join("etc-hosts"), "");
    write(&space.pod.path().join("containers/app/0a1b2c3d"), "");
}

#[test]
fn volume_with_a_busy_bind_mount_is_not_removed() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "cache");
        write(&dir.join("own"), "precious");
        write(&space.outside.join("data/file"), "precious");
        fs::create_dir(dir.join("bound")).unwrap();
        bind(&space.outside.join("data"), &dir.join("bound"));
        write(&space.volume("configmap", "other").join("file"), "");
        let here = std::env::current_dir().unwrap();
        std::env::set_current_dir(dir.join("bound")).unwrap();

        let errors = tear_down(space).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0].path, dir.join("bound"));
        assert!(matches!(errors[0].cause, Cause::Busy(_)), "{errors:?}");
        assert_precious(dir.join("own"));
        assert_precious(dir.join("bound/file"));
        assert!(
            !space.pod.path().join("volumes/kubernetes.io~configmap/other").exists(),
            "others are not blocked"
        );
        assert!(!space.pod.leftovers(&space.mounts).unwrap().is_empty());

        std::env::set_current_dir(here).unwrap();
        tear_down_cleanly(space);
        assert_precious(space.outside.join("data/file"));
        assert_removed(space);
    });
}

#[test]
fn propagated_mounts_are_unmounted_on_both_sides() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        fs::create_dir(dir.join("sub")).unwrap();
        let target = space.subpath("v", 0, &dir.join("sub"));
        tmpfs(&dir.join("sub/inner"));
        tmpfs(&target.join("other"));
        let mut mounted = space.mounted();
        mounted.sort();
        let expected = [
            &target,
            &target.join("inner"),
            &target.join("other"),
            &dir.join("sub/inner"),
            &dir.join("sub/other"),
        ];
        assert_eq!(mounted.iter().collect::<Vec<_>>(), expected, "one peer group");
        tear_down_cleanly(space);
        assert_removed(space);
    });
}

#[test]
fn subpaths_of_host_paths_are_unmounted_and_host_files_kept() {
    in_own_namespace(|space| {
        write(&space.outside.join("dir/file"), "precious");
        space.subpath("host", 0, &space.outside.join("dir"));
        let file = space.pod.path().join("volume-subpaths/host/app/1");
        write(&file, "");
        bind(&space.outside.join("dir/file"), &file);
        fs::create_dir_all(space.pod.path().join("volume-subpaths/half-made/app/2")).unwrap();
        tear_down_cleanly(space);
        assert_precious(space.outside.join("dir/file"));
        assert_removed(space);
    });
}

#[test]
fn unsupported_volumes_are_kept_and_keep_the_pod() {
    in_own_namespace(|space| {
        let iscsi = space.volume("iscsi", "share");
        tmpfs(&iscsi);
        write(&iscsi.join("file"), "precious");
        let target = space.subpath("share", 0, &iscsi);
        tmpfs(&space.volume("secret", "s"));
        let errors = tear_down(space).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        let text = errors[0].to_string();
        assert!(text.contains("kubernetes.io~iscsi") && text.contains("share"), "{text}");
        assert_precious(iscsi.join("file"));
        let mut left = space.mounted();
        left.sort();
        assert_eq!(left, [target, iscsi], "the secret is gone all the same");
        assert!(!space.pod.leftovers(&space.mounts).unwrap().is_empty());
    });
}

#[test]
fn other_mount_in_the_pods_directory_is_reported_and_kept() {
    in_own_namespace(|space| {
        let odd = space.pod.path().join("containers/app");
        tmpfs(&odd);
        let errors = tear_down(space).unwrap_err();
        assert_eq!((&errors[0].path, &errors[0].cause), (&odd, &Cause::StillMounted));
        assert_eq!(space.mounted(), [odd]);
    });
}

#[test]
fn shut_gate_keeps_everything() {
    in_own_namespace(|space| {
        of_each_kind(space);
        let mounted = space.mounted();
        let held = Blocked::Other("a kubelet is here".into());
        let answer = held.clone();
        let effects = Effects::new(Arc::new(move || Err(answer.clone())));
        let errors = tear_down_with(space, &effects).unwrap_err();
        assert!(
            errors.iter().any(|error| error.cause == Cause::Blocked(held.clone())),
            "{errors:?}"
        );
        assert_eq!(space.mounted(), mounted);
        assert!(
            space
                .pod
                .path()
                .join("volumes/kubernetes.io~empty-dir/disk/a/b/file")
                .exists()
        );
    });
}

#[test]
fn root_that_is_a_bind_mount_behind_a_link_is_supported() {
    in_own_namespace(|space| {
        bind(&space.root, &space.root);
        let link = space.outside.join("kubelet");
        std::os::unix::fs::symlink(&space.root, &link).unwrap();
        let root = pod_teardown::node::kubelet_root::KubeletRoot::resolve(&link).unwrap();
        let pod = pod_teardown::node::pod_dir::PodDir::new(&root, UID).unwrap();
        of_each_kind(space);
        block_on(tear_down_volumes(&pod, &space.storage(&Effects::ungated()))).unwrap();
        assert_removed(space);
    });
}

#[test]
fn volume_that_is_a_link_is_removed_but_its_target_is_kept() {
    in_own_namespace(|space| {
        tmpfs(&space.outside.join("mounted"));
        write(&space.outside.join("mounted/file"), "precious");
        let dir = space.volume("empty-dir", "v");
        fs::remove_dir(&dir).unwrap();
        std::os::unix::fs::symlink(space.outside.join("mounted"), &dir).unwrap();
        tear_down_cleanly(space);
        assert_precious(space.outside.join("mounted/file"));
        assert_removed(space);
    });
}
