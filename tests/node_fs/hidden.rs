//! Mounts that directory listings do not show, because a directory was renamed or is covered by another mount: the mount
//! table decides.

use std::{fs, path::PathBuf, sync::Arc};

use nix::mount::umount;
use pod_teardown::{
    journal::Journal,
    node::{
        effects::Effects,
        fault::{Cause, Fault},
        kubelet_root::KubeletRoot,
        lock::DirLock,
        mounts::Mounts,
    },
    teardown::{
        boundary::NoApi,
        on_disk::remove_pod_dir,
        volumes::{
            may_hold_attached,
            storage::{Storage, VolumeLocks},
        },
    },
};
use testbed::drivers::csi_volumes::{stage_and_publish_block, staging};

use crate::{
    csi::disk,
    images::run,
    node::{IN_USE, Known, PV, on_node},
    space::{
        MOUNTINFO, Space, UID, assert_precious, bind, block_on, in_own_namespace, tear_down_volumes, tmpfs, write,
    },
};

/// A volume in memory with data.
fn in_memory(space: &Space) -> PathBuf {
    let volume = space.volume("empty-dir", "memory");
    tmpfs(&volume);
    write(&volume.join("data"), "precious");
    volume
}

/// With a table that was not read before: the kernel does not report a renamed directory.
fn tear_down(space: &Space, root: &KubeletRoot) -> Result<(), Vec<Fault>> {
    let mounts = Arc::new(Mounts::new(MOUNTINFO, root.pods()));
    let storage = Storage {
        root: root.clone(),
        all_mounts: Arc::new(Mounts::new(MOUNTINFO, "/")),
        mounts,
        effects: Effects::ungated(),
        sys_block: "/sys/block".into(),
        proc: "/proc".into(),
        api: Arc::new(NoApi),
        locks: VolumeLocks::default(),
        journal: Journal::in_memory(),
    };
    block_on(tear_down_volumes(&space.pod, &Arc::new(storage)))
}

fn causes(result: Result<(), Vec<Fault>>) -> Vec<(PathBuf, Cause)> {
    let faults = result.unwrap_err().into_iter();
    faults.map(|fault| (fault.path, fault.cause)).collect()
}

#[test]
fn covered_mount_keeps_the_pod() {
    in_own_namespace(|space| {
        let (volume, root) = (in_memory(space), KubeletRoot::resolve(&space.root).unwrap());
        let (pods, storage) = (space.root.join("pods"), space.storage(&Effects::ungated()));
        for cover in [&pods, &space.root] {
            tmpfs(cover);
            assert!(!space.pod.path().exists());
            let found = causes(tear_down(space, &root));
            let [(path, Cause::Hidden(named))] = &found[..] else {
                panic!("{found:?}")
            };
            assert_eq!((path, &named.path, named.mounts), (&volume, cover, 0));
            assert!(may_hold_attached(&space.pod, &space.mounts));
            let removed = block_on(remove_pod_dir(&space.pod, &storage));
            assert_eq!(removed.unwrap_err()[0].path, volume);
            umount(cover).unwrap();
        }
        assert_precious(volume.join("data"));
        assert_eq!(tear_down(space, &root), Ok(()));
        assert!(!volume.exists());
    });
}

#[test]
fn second_mount_of_the_kubelets_directory_is_removed_by_the_named_command_beside_the_agent() {
    in_own_namespace(|space| {
        let (volume, root) = (in_memory(space), KubeletRoot::resolve(&space.root).unwrap());
        let pods = space.root.join("pods");
        bind(&space.root, &space.root);
        assert!(pods.exists());
        let _lock = DirLock::acquire(&pods, &space.outside).unwrap();
        let found = causes(tear_down(space, &root));
        let [(path, Cause::Hidden(cover))] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!((path, &cover.path), (&volume, &space.root));
        // The lock does not keep the mount busy.
        umount(&space.root).unwrap();
        bind(&space.root, &space.root);
        run("sh", &["-c".as_ref(), cover.command().as_ref()]);
        assert_precious(volume.join("data"));
        assert_eq!(tear_down(space, &root), Ok(()));
    });
}

#[test]
fn mount_in_a_renamed_directory_keeps_the_pod() {
    in_own_namespace(|space| {
        in_memory(space);
        let root = KubeletRoot::resolve(&space.root).unwrap();
        let pods = space.root.join("pods");
        let outside = space.outside.join(format!("{UID}-backup"));
        for renamed in [pods.join(format!("{UID}.bak")), outside] {
            fs::rename(space.pod.path(), &renamed).unwrap();
            let volume = renamed.join("volumes/kubernetes.io~empty-dir/memory");
            let expected = vec![(volume, Cause::MountedElsewhere)];
            assert_eq!(causes(tear_down(space, &root)), expected, "{renamed:?}");
            fs::create_dir(space.pod.path()).unwrap();
            assert_eq!(
                causes(tear_down(space, &root)),
                expected,
                "{renamed:?}, and a new directory"
            );
            fs::remove_dir(space.pod.path()).unwrap();
            fs::rename(&renamed, space.pod.path()).unwrap();
        }
        assert_eq!(tear_down(space, &root), Ok(()));
    });
}

#[test]
fn volume_without_uid_keeps_only_pods_without_directory() {
    in_own_namespace(|space| {
        in_memory(space);
        let root = KubeletRoot::resolve(&space.root).unwrap();
        let renamed = space.outside.join("backup");
        fs::rename(space.pod.path(), &renamed).unwrap();
        let volume = renamed.join("volumes/kubernetes.io~empty-dir/memory");
        assert_eq!(causes(tear_down(space, &root)), [(volume, Cause::MountedForUnknownPod)]);
        let other = space.another_pod();
        let storage = space.storage(&Effects::ungated());
        assert!(block_on(tear_down_volumes(&other, &storage)).is_ok());
    });
}

#[test]
fn volume_mounted_for_a_hidden_pod_is_not_unstaged() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let published = node.publish();
        let pods = node.space.root.join("pods");
        tmpfs(&pods);
        let why = node.unused_fails().await;
        assert!(why.contains(&format!("pod {UID} may use it")), "{why}");
        assert_eq!(
            (node.calls(), node.known.has_in_use()),
            (vec![], vec![IN_USE.to_owned()])
        );
        umount(&pods).unwrap();
        assert_precious(published.target.join("data"));
        node.is_torn_down().await;
        node.assert_clean();
    });
}

#[test]
fn volume_staged_under_another_mount_stays_in_use() {
    on_node(Known::with(&[IN_USE]), async |node| {
        let published = node.publish();
        umount(&published.target).unwrap();
        fs::remove_dir_all(node.space.pod.path()).unwrap();
        let all = node.space.root.join("plugins/kubernetes.io/csi");
        tmpfs(&all);
        let why = node.unused_fails().await;
        assert!(why.contains("still mounted") && why.contains("globalmount"), "{why}");
        assert_eq!(node.known.has_in_use(), [IN_USE]);
        umount(&all).unwrap();
        node.unused_is_torn_down().await;
        assert_eq!(node.calls(), ["unstage"]);
        assert!(!staging(&node.space.root, &PV).exists());
        node.assert_clean();
    });
}

#[test]
fn device_mapped_under_another_mount_keeps_the_pod() {
    on_node(Known::with(&[IN_USE]), async |node| {
        stage_and_publish_block(&node.space.root, UID, &PV, &disk(node.space), false).unwrap();
        let all = node.space.root.join("plugins/kubernetes.io/csi/volumeDevices");
        let link = node.space.pod.path().join("volumeDevices");
        for with_link in [true, false] {
            tmpfs(&all);
            let away = node.space.outside.join("link");
            if !with_link {
                fs::rename(&link, &away).unwrap();
            }
            let why = node.fails().await;
            assert!(
                why.contains("still mounted") && why.contains(UID),
                "with link {with_link}: {why}"
            );
            assert_eq!(node.known.has_in_use(), [IN_USE]);
            umount(&all).unwrap();
            if !with_link {
                fs::rename(&away, &link).unwrap();
            }
        }
        node.is_torn_down().await;
        node.assert_clean();
    });
}
