//! Volumes with data that must be kept: network file systems, `local` volumes, raw block devices.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use pod_teardown::node::{effects::Effects, fault::Cause};

use testbed::drivers::csi_volumes::LoopDevice;

use crate::{
    images::run,
    space::{Space, UID, assert_precious, bind, block_on, in_own_namespace, tear_down_volumes, tmpfs, write},
    volumes::{assert_removed, tear_down, tear_down_cleanly},
};

pub fn image(space: &Space, name: &str) -> PathBuf {
    let path = space.outside.join(name);
    fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
    path
}

#[test]
fn network_file_systems_are_unmounted_and_their_files_kept() {
    in_own_namespace(|space| {
        for plugin in ["nfs", "cephfs", "glusterfs", "azure-file", "quobyte"] {
            write(&space.outside.join(plugin).join("sub/file"), "precious");
            let dir = space.volume(plugin, &format!("{plugin}-volume"));
            bind(&space.outside.join(plugin), &dir);
            space.subpath(&format!("{plugin}-volume"), 0, &dir.join("sub"));
            // One that a kubelet created, and died before it mounted anything there.
            space.volume(plugin, &format!("{plugin}-half"));
        }
        tear_down_cleanly(space);
        for plugin in ["nfs", "cephfs", "glusterfs", "azure-file", "quobyte"] {
            assert_precious(space.outside.join(plugin).join("sub/file"));
        }
        assert_removed(space);
    });
}

#[test]
fn files_under_a_network_mount_point_are_kept_and_keep_the_pod() {
    in_own_namespace(|space| {
        let dir = space.volume("nfs", "share");
        write(&dir.join("written-before-the-mount"), "precious");
        tmpfs(&dir);
        let errors = tear_down(space).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0].path, dir);
        assert!(matches!(errors[0].cause, Cause::NotEmpty(_)), "{errors:?}");
        assert_precious(dir.join("written-before-the-mount"));
        let text = errors[0].to_string();
        assert!(text.contains("written-before-the-mount"), "{text}");
        let (_, command) = text.rsplit_once("such as by: ").unwrap();
        let command = command.replace("/var/tmp/", space.outside.to_str().unwrap());
        run("sh", &["-c".as_ref(), command.as_ref()]);
        assert_precious(space.outside.join("share/written-before-the-mount"));
        tear_down_cleanly(space);
    });
}

#[test]
fn local_device_is_unmounted_with_its_last_pod() {
    in_own_namespace(|space| {
        let device = space.root.join("plugins/kubernetes.io/local-volume/mounts/pv-1");
        tmpfs(&device);
        let other = space.another_pod();
        let of_other = other.path().join("volumes/kubernetes.io~local-volume/pv-1");
        fs::create_dir_all(&of_other).unwrap();
        bind(&device, &of_other);
        bind(&device, &space.volume("local-volume", "pv-1"));
        write(&device.join("file"), "precious");

        tear_down_cleanly(space);
        assert_removed(space);
        assert_precious(of_other.join("file"));
        assert_precious(device.join("file"));

        block_on(tear_down_volumes(&other, &space.storage(&Effects::ungated()))).unwrap();
        assert!(!of_other.exists());
        assert!(!device.exists() && device.parent().unwrap().exists());
    });
}

/// A directory outside of the kubelet's is no pod's here, whatever it is called.
#[test]
fn local_device_is_unmounted_beside_a_volume_of_that_name_elsewhere() {
    in_own_namespace(|space| {
        let device = space.root.join("plugins/kubernetes.io/local-volume/mounts/pv-1");
        tmpfs(&device);
        bind(&device, &space.volume("local-volume", "pv-1"));
        tmpfs(&space.outside.join("pods/x/volumes/kubernetes.io~local-volume/pv-1"));
        tear_down_cleanly(space);
        assert!(!device.exists());
    });
}

/// The files that a kubelet creates for a raw block device of a local volume.
pub fn map_block(space: &Space, device: &Path) -> (PathBuf, PathBuf) {
    let map = space
        .root
        .join("plugins/kubernetes.io~local-volume/volumeDevices/pv-1")
        .join(UID);
    write(&map, "");
    bind(device, &map);
    let link = space.pod.path().join("volumeDevices/kubernetes.io~local-volume/pv-1");
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    symlink(device, &link).unwrap();
    (map, link)
}

#[test]
fn block_device_is_unmapped_and_its_data_kept() {
    in_own_namespace(|space| {
        let file = image(space, "disk.img");
        fs::write(&file, vec![7; 1 << 20]).unwrap();
        let device = LoopDevice::attach(&file).unwrap();
        let (map, link) = map_block(space, &device.path);
        let lock = LoopDevice::attach(&map).unwrap();
        assert!(lock.is_attached());
        tear_down_cleanly(space);
        assert!(!lock.is_attached() && !map.exists() && !link.is_symlink());
        assert!(device.is_attached(), "the device itself is not the pod's");
        assert_eq!(fs::read(&file).unwrap(), vec![7; 1 << 20]);
        assert_removed(space);
    });
}

#[test]
fn block_device_without_link_after_a_crash_is_found() {
    in_own_namespace(|space| {
        let device = LoopDevice::attach(&image(space, "disk.img")).unwrap();
        let (map, link) = map_block(space, &device.path);
        let lock = LoopDevice::attach(&map).unwrap();
        fs::remove_file(link).unwrap();
        tear_down_cleanly(space);
        assert!(!lock.is_attached() && !map.exists());

        map_block(space, &device.path);
        fs::remove_dir_all(space.pod.path()).unwrap();
        tear_down_cleanly(space);
        assert!(!map.exists(), "also when the pod's directory is gone");
    });
}

#[test]
fn device_mapped_by_another_pod_is_kept() {
    in_own_namespace(|space| {
        let device = LoopDevice::attach(&image(space, "disk.img")).unwrap();
        let (map, _) = map_block(space, &device.path);
        let of_other = map.with_file_name(UID.replace("01", "02"));
        write(&of_other, "");
        bind(&device.path, &of_other);
        let lock = LoopDevice::attach(&of_other).unwrap();
        tear_down_cleanly(space);
        assert!(!map.exists() && lock.is_attached() && of_other.exists());
    });
}

#[test]
fn directory_instead_of_a_device_link_is_never_removed_with_content() {
    in_own_namespace(|space| {
        let odd = space.pod.path().join("volumeDevices/kubernetes.io~local-volume/pv-1");
        write(&odd.join("file"), "precious");
        let errors = tear_down(space).unwrap_err();
        assert_eq!(errors[0].path, odd, "{errors:?}");
        assert_precious(odd.join("file"));
    });
}
