//! Volumes of a pod, in normal and in damaged states.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::future::join_all;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use pod_teardown::{
    node::{
        effects::{Effects, EffectsBlocked},
        fault::{Cause, Fault},
        kubelet_root::KubeletRoot,
        mounts::Mounts,
        pod_dir::PodDir,
    },
    teardown::volumes::{VolumesReport, storage::Storage, tear_down_volumes},
};

use crate::space::{Space, UID, bind, block_on, in_own_namespace, soon, tmpfs, write};

pub fn tear_down(space: &Space) -> Result<VolumesReport, Vec<Fault>> {
    tear_down_with(space, &Effects::ungated())
}

fn tear_down_with(space: &Space, effects: &Effects) -> Result<VolumesReport, Vec<Fault>> {
    block_on(tear_down_volumes(&space.pod, &space.storage(effects)))
}

#[track_caller]
pub fn tear_down_cleanly(space: &Space) {
    tear_down(space).unwrap();
}

/// The same if a holder has just exited.
pub fn tear_down_cleanly_soon(space: &Space) {
    let storage = space.storage(&Effects::ungated());
    block_on(soon(async || tear_down_volumes(&space.pod, &storage).await));
}

#[track_caller]
pub fn assert_removed(space: &Space) {
    assert_eq!(space.mounted(), Vec::<PathBuf>::new());
    assert_eq!(space.pod.leftovers(&space.mounts), Ok(vec![]));
    assert_eq!(
        tear_down(space),
        Ok(VolumesReport::default()),
        "a second run has nothing to do"
    );
}

#[track_caller]
pub fn assert_precious(path: impl AsRef<Path>) {
    let path = path.as_ref();
    assert_eq!(fs::read_to_string(path).unwrap(), "precious", "{path:?}");
}

#[test]
fn simultaneous_teardowns_share_reads_of_the_mount_table() {
    const PODS: usize = 60;
    in_own_namespace(|space| {
        // A regular file: inotify reports when it is opened.
        let table = space.outside.join("mountinfo");
        fs::copy("/proc/thread-self/mountinfo", &table).unwrap();
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        // Equal events in sequence would be merged.
        inotify
            .add_watch(&table, AddWatchFlags::IN_OPEN | AddWatchFlags::IN_CLOSE_NOWRITE)
            .unwrap();

        let root = KubeletRoot::resolve(&space.root).unwrap();
        let pods = (0..PODS).map(|pod| PodDir::new(&root, &format!("{UID}-{pod}")).unwrap());
        let pods: Vec<PodDir> = pods.collect();
        for pod in &pods {
            write(&pod.path().join("volumes/kubernetes.io~empty-dir/v/file"), "");
        }
        let storage = Arc::new(Storage {
            mounts: Arc::new(Mounts::new(table, root.pods())),
            ..Arc::into_inner(space.storage(&Effects::ungated())).unwrap()
        });
        block_on(async {
            let done = join_all(pods.iter().map(|pod| tear_down_volumes(pod, &storage))).await;
            assert!(done.iter().all(Result::is_ok), "{done:?}");
        });
        assert!(pods.iter().all(|pod| pod.leftovers_on_disk().unwrap().is_empty()));
        let mut reads = 0;
        while let Ok(events) = inotify.read_events() {
            let opens = |mask: AddWatchFlags| mask.contains(AddWatchFlags::IN_OPEN);
            reads += events.iter().filter(|event| opens(event.mask)).count();
        }
        assert!((1..PODS / 2).contains(&reads), "{reads} reads for {PODS} pods");
    });
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
fn volumes_of_each_kind_are_torn_down_in_one_run() {
    in_own_namespace(|space| {
        of_each_kind(space);
        space.subpath(
            "disk",
            0,
            &space.pod.path().join("volumes/kubernetes.io~empty-dir/disk/a"),
        );
        let report = tear_down(space).unwrap();
        assert_eq!(report.unmounted, 5);
        assert!(space.pod.path().join("etc-hosts").exists(), "not a volume");
        assert!(!space.pod.path().join("volume-subpaths").exists());
        assert_eq!(
            fs::read_dir(space.pod.path().join("plugins/kubernetes.io~empty-dir"))
                .unwrap()
                .count(),
            0
        );
        assert_removed(space);
    });
}

#[test]
fn data_behind_a_bind_mount_in_a_volume_is_kept() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "cache");
        write(&space.outside.join("data/file"), "precious");
        fs::create_dir_all(dir.join("deep/bound")).unwrap();
        bind(&space.outside.join("data"), &dir.join("deep/bound"));
        tear_down_cleanly(space);
        assert_precious(space.outside.join("data/file"));
        assert_removed(space);
    });
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
        assert_eq!(space.pod.is_clean(&space.mounts), Ok(false));

        std::env::set_current_dir(here).unwrap();
        tear_down_cleanly(space);
        assert_precious(space.outside.join("data/file"));
        assert_removed(space);
    });
}

#[test]
fn busy_memory_volume_keeps_its_content() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "memory");
        tmpfs(&dir);
        write(&dir.join("sub/file"), "precious");
        let target = space.subpath("memory", 0, &dir.join("sub"));
        let open = fs::File::open(dir.join("sub/file")).unwrap();
        let errors = tear_down(space).unwrap_err();
        assert_eq!(
            errors.iter().map(|error| &error.path).collect::<Vec<_>>(),
            [&dir],
            "{errors:?}"
        );
        assert_precious(dir.join("sub/file"));
        assert!(!space.mounted().contains(&target));
        drop(open);
        tear_down_cleanly_soon(space);
        assert_removed(space);
    });
}

#[test]
fn stacked_and_nested_mounts_in_volumes_are_unmounted_without_loss_outside() {
    in_own_namespace(|space| {
        let dir = space.volume("projected", "p");
        tmpfs(&dir);
        tmpfs(&dir);
        tmpfs(&dir.join("nested"));
        fs::create_dir(dir.join("nested/bound")).unwrap();
        write(&space.outside.join("file"), "precious");
        bind(&space.outside, &dir.join("nested/bound"));
        tear_down_cleanly(space);
        assert_precious(space.outside.join("file"));
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
        assert_eq!(space.pod.is_clean(&space.mounts), Ok(false));
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
        let held = EffectsBlocked {
            reason: "a kubelet is here".into(),
        };
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
        let report = block_on(tear_down_volumes(&pod, &space.storage(&Effects::ungated()))).unwrap();
        assert_eq!(report.unmounted, 4);
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
