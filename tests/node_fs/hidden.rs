//! Mounts that no look at directories finds, because a directory was renamed or something else is mounted on it: the mount
//! table counts.

use std::{fs, path::PathBuf, sync::Arc};

use nix::mount::umount;
use pod_teardown::{
    node::{
        effects::Effects,
        fault::{Cause, Fault},
        kubelet_root::KubeletRoot,
        mounts::Mounts,
        plugins::Registrars,
    },
    teardown::{
        pod_dir::remove_pod_dir,
        volumes::{
            may_hold_attached,
            storage::{NoCluster, Storage, VolumeLocks},
            tear_down_volumes,
        },
    },
};
use testbed::drivers::left::{stage_and_publish_block, staging};

use crate::{
    csi::disk,
    node::{IN_USE, Known, PV, on_node},
    space::{Space, UID, block_on, in_own_namespace, tmpfs, write},
};

/// A volume in memory with somebody's data.
fn in_memory(space: &Space) -> PathBuf {
    let volume = space.volume("empty-dir", "memory");
    tmpfs(&volume);
    write(&volume.join("data"), "precious");
    volume
}

/// By a table that was not read before: the kernel does not tell of a directory that is renamed.
fn tear_down(space: &Space, root: &KubeletRoot) -> Result<(), Vec<Fault>> {
    let mounts = Arc::new(Mounts::new("/proc/thread-self/mountinfo", root.pods()));
    let storage = Storage {
        root: root.clone(),
        all_mounts: Arc::new(Mounts::new("/proc/thread-self/mountinfo", "/")),
        mounts,
        effects: Effects::ungated(),
        sys_block: "/sys/block".into(),
        proc: "/proc".into(),
        cluster: Arc::new(NoCluster),
        locks: VolumeLocks::default(),
        registrars: Registrars::default(),
    };
    block_on(tear_down_volumes(&space.pod, &Arc::new(storage))).map(drop)
}

fn causes(result: Result<(), Vec<Fault>>) -> Vec<(PathBuf, Cause)> {
    let faults = result.unwrap_err().into_iter();
    faults.map(|fault| (fault.path, fault.cause)).collect()
}

#[test]
fn a_mount_below_a_directory_that_another_mount_covers_keeps_the_pod() {
    in_own_namespace(|space| {
        let (volume, root) = (in_memory(space), KubeletRoot::resolve(&space.root).unwrap());
        let pods = space.root.join("pods");
        for cover in [&pods, &space.root] {
            tmpfs(cover);
            assert!(!space.pod.path().exists());
            let expected = vec![(volume.clone(), Cause::StillMounted)];
            assert_eq!(causes(tear_down(space, &root)), expected, "{cover:?} is covered");
            assert!(may_hold_attached(&space.pod, &space.mounts));
            let removed = block_on(remove_pod_dir(&space.pod, &space.mounts, &Effects::ungated()));
            assert_eq!(removed.unwrap_err()[0].path, volume);
            umount(cover).unwrap();
        }
        assert_eq!(fs::read_to_string(volume.join("data")).unwrap(), "precious");
        assert_eq!(tear_down(space, &root), Ok(()));
        assert!(!volume.exists());
    });
}

#[test]
fn a_mount_in_a_directory_that_was_renamed_keeps_the_pod_also_beside_a_new_empty_one() {
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
fn a_volume_in_a_directory_of_any_other_name_keeps_pods_without_a_directory_and_no_others() {
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
fn a_volume_that_is_mounted_for_a_pod_which_cannot_be_seen_is_not_unstaged() {
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
        assert_eq!(fs::read_to_string(published.target.join("data")).unwrap(), "precious");
        node.goes().await;
        node.assert_clean();
    });
}

#[test]
fn a_volume_stays_in_use_while_it_is_staged_where_another_mount_covers_it() {
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
        node.unused_goes().await;
        assert_eq!(node.calls(), ["unstage"]);
        assert!(!staging(&node.space.root, &PV).exists());
        node.assert_clean();
    });
}

#[test]
fn a_device_that_is_mapped_where_another_mount_covers_it_keeps_the_pod() {
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
        node.goes().await;
        node.assert_clean();
    });
}
