//! Kinds of volumes × faults: each cell on real mounts.
//!
//! | fault | test |
//! |---|---|
//! | `clean` | the volume as an idle kubelet leaves it |
//! | `busy` | a file in it is open: no data is lost, and it is torn down once the file is closed |
//! | `crashed_mid_mount` | each state while a kubelet sets the volume up |
//! | `crashed_mid_unmount` | each state while a kubelet tears it down |
//! | `driver_gone` | the driver does not answer: the pod waits, others do not, and it is torn down when the driver is back; dead servers are in `servers.rs` |
//! | `hostile_content` | links and mounts that lead outside, deep trees, odd names |

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::symlink},
    path::PathBuf,
};

use nix::mount::{MsFlags, mount, umount};
use testbed::drivers::csi_volumes::{LoopDevice, publish_ephemeral, stage_and_publish, stage_and_publish_block};

use crate::{
    data::{image, map_block},
    node::{DRIVER, IN_USE, Known, Node, PV, on_node},
    space::{Space, UID, assert_precious, bind, tmpfs, write},
};

/// A kind of volume, as a kubelet sets it up step by step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    DiskEmptyDir,
    MemoryEmptyDir,
    HugePages,
    ConfigMap,
    Secret,
    Projected,
    DownwardApi,
    HostPath,
    Nfs,
    LocalDirectory,
    LocalDevice,
    Csi,
    CsiEphemeral,
}

use Kind::*;

/// Paths of a volume, and its data that must be kept.
#[derive(Default)]
struct Made {
    /// Path at which a container writes.
    data: PathBuf,
    /// Its directory in the pod, if it has one.
    volume: Option<PathBuf>,
    marker: Option<PathBuf>,
    /// Mounts, in order of creation.
    mounts: Vec<PathBuf>,
    /// A file that must be kept, wherever it is.
    precious: Option<PathBuf>,
}

impl Kind {
    /// Whether its content is deleted with the pod.
    fn is_scratch(self) -> bool {
        matches!(
            self,
            DiskEmptyDir | MemoryEmptyDir | HugePages | ConfigMap | Secret | Projected | DownwardApi
        )
    }

    fn is_csi(self) -> bool {
        matches!(self, Csi | CsiEphemeral)
    }

    fn make(self, space: &Space) -> Made {
        let of_plugin = |plugin: &str, name: &str| space.volume(plugin, name);
        let outside = space.outside.join("data");
        fs::create_dir_all(&outside).unwrap();
        let scratch = |plugin: &str, marker: &str, memory: Option<&str>| {
            let dir = of_plugin(plugin, "v");
            if let Some(kind) = memory {
                mount(None::<&str>, &dir, Some(kind), MsFlags::empty(), None::<&str>).unwrap();
            }
            Made {
                data: dir.clone(),
                volume: Some(dir.clone()),
                marker: Some(space.marker(marker)),
                mounts: memory.map(|_| dir).into_iter().collect(),
                precious: None,
            }
        };
        let wrapped = |plugin, memory| scratch(plugin, "wrapped_v", memory);
        let mut made = match self {
            DiskEmptyDir => scratch("empty-dir", "v", None),
            MemoryEmptyDir => scratch("empty-dir", "v", Some("tmpfs")),
            HugePages => scratch("empty-dir", "v", Some("hugetlbfs")),
            ConfigMap => wrapped("configmap", None),
            Secret => wrapped("secret", Some("tmpfs")),
            Projected => wrapped("projected", Some("tmpfs")),
            DownwardApi => wrapped("downward-api", Some("tmpfs")),
            HostPath => Made {
                data: space.subpath("v", 0, &outside),
                mounts: vec![space.pod.path().join("volume-subpaths/v/app/0")],
                ..Made::default()
            },
            Nfs | LocalDirectory | LocalDevice => {
                let plugin = if self == Nfs { "nfs" } else { "local-volume" };
                let dir = of_plugin(plugin, "v");
                let mut mounts = Vec::new();
                let device = space.root.join("plugins/kubernetes.io/local-volume/mounts/v");
                if self == LocalDevice {
                    fs::create_dir_all(&device).unwrap();
                    bind(&outside, &device);
                    mounts.push(device);
                }
                bind(mounts.first().unwrap_or(&outside), &dir);
                mounts.push(dir.clone());
                Made {
                    data: dir.clone(),
                    volume: Some(dir),
                    mounts,
                    ..Made::default()
                }
            }
            Csi => {
                let published = stage_and_publish(&space.root, UID, &PV).unwrap();
                Made {
                    data: published.target.clone(),
                    volume: Some(published.volume),
                    mounts: vec![published.staging.unwrap(), published.target],
                    ..Made::default()
                }
            }
            CsiEphemeral => {
                let published = publish_ephemeral(&space.root, UID, "v", DRIVER).unwrap();
                Made {
                    data: published.target.clone(),
                    volume: Some(published.volume),
                    mounts: vec![published.target],
                    ..Made::default()
                }
            }
        };
        // hugetlbfs accepts no writes; a directory in it shows the same.
        if self == HugePages {
            fs::create_dir(made.data.join("file")).unwrap();
        } else {
            write(&made.data.join("file"), "precious");
        }
        if !self.is_scratch() && !self.is_csi() {
            made.precious = Some(outside.join("file"));
        }
        made
    }
}

impl Made {
    /// Nothing of it is left on the node, except data that must be kept.
    #[track_caller]
    fn assert_removed(&self, node: &Node<'_>) {
        assert_eq!(node.space.mounted(), Vec::<PathBuf>::new());
        assert_eq!(node.space.pod.leftovers(&node.space.mounts), Ok(vec![]));
        for left in self.marker.iter().chain(&self.volume).chain(&self.mounts) {
            assert!(!left.exists(), "{left:?}");
        }
        if let Some(precious) = &self.precious {
            assert_precious(precious);
        }
        assert_eq!(node.known.has_in_use(), Vec::<String>::new());
    }

    fn unmount_last(&mut self) {
        umount(&self.mounts.pop().unwrap()).unwrap();
    }
}

fn on(kind: Kind, test: impl AsyncFnOnce(&mut Node<'_>) + Send + 'static) {
    let in_use: &[&str] = if kind == Csi { &[IN_USE] } else { &[] };
    on_node(Known::with(in_use), test);
}

fn clean(kind: Kind) {
    on(kind, async move |node| {
        let made = kind.make(node.space);
        node.is_torn_down().await;
        made.assert_removed(node);
    });
}

fn busy(kind: Kind) {
    on(kind, async move |node| {
        let made = kind.make(node.space);
        let other = node.space.volume("empty-dir", "other");
        tmpfs(&other);
        let open = fs::File::open(made.data.join("file")).unwrap();
        if let Some(busy) = made.mounts.last() {
            let why = node.fails().await;
            assert!(why.contains(busy.to_str().unwrap()), "{why}");
            assert!(busy.join("file").exists(), "nothing of it is lost");
            assert!(!other.exists(), "others are not blocked");
        }
        drop(open);
        node.is_torn_down_soon().await;
        made.assert_removed(node);
    });
}

fn crashed_mid_mount(kind: Kind) {
    // In reverse order: marker or mounts, then the directory.
    for undone in 0..4 {
        on(kind, async move |node| {
            let mut made = kind.make(node.space);
            let content = made.mounts.is_empty();
            if undone >= 1
                && let Some(marker) = &made.marker
            {
                fs::remove_dir_all(marker).unwrap();
            }
            if undone >= 2 && content {
                fs::remove_file(made.data.join("file")).unwrap();
            }
            while undone >= 2 && !made.mounts.is_empty() && !(undone == 2 && made.mounts.len() == 1 && kind == Csi) {
                made.unmount_last();
            }
            if undone >= 3
                && let Some(volume) = &made.volume
            {
                fs::remove_dir_all(volume).unwrap();
            }
            node.is_torn_down().await;
            if kind == Csi {
                // If the pod's directory does not mention it any more.
                node.unused_is_torn_down().await;
            }
            made.assert_removed(node);
        });
    }
}

fn crashed_mid_unmount(kind: Kind) {
    for done in 0..3 {
        on(kind, async move |node| {
            let mut made = kind.make(node.space);
            // A kubelet removes the marker first, then unmounts, then removes files one by one.
            if let Some(marker) = &made.marker {
                fs::remove_file(marker.join("ready")).unwrap();
            }
            if done >= 1 && !made.mounts.is_empty() {
                made.unmount_last();
            }
            if done >= 2 {
                match (&made.volume, kind.is_csi()) {
                    // The mount point, then the file, then the directory.
                    (Some(volume), true) => fs::remove_dir(volume.join("mount")).unwrap(),
                    (Some(volume), false) if kind.is_scratch() => {
                        fs::remove_dir_all(volume).unwrap();
                        fs::create_dir(volume).unwrap();
                    }
                    _ => {}
                }
            }
            node.is_torn_down().await;
            made.assert_removed(node);
        });
    }
}

fn driver_gone(kind: Kind) {
    on(kind, async move |node| {
        let made = kind.make(node.space);
        let other = node.space.volume("empty-dir", "other");
        tmpfs(&other);
        node.driver.crash().await;
        let why = node.fails().await;
        assert!(why.contains(DRIVER) && why.contains("not available"), "{why}");
        assert!(made.data.join("file").exists() && !other.exists());
        node.driver.come_back().unwrap();
        node.is_torn_down().await;
        made.assert_removed(node);
    });
}

fn hostile_content(kind: Kind) {
    on(kind, async move |node| {
        let made = kind.make(node.space);
        let victim = node.space.outside.join("victim");
        write(&victim.join("sub/file"), "precious");
        let data = &made.data;
        if kind != HugePages {
            symlink(&victim, data.join("link")).unwrap();
            symlink(victim.join("sub/file"), data.join("..data")).unwrap();
            symlink("../../../../../..", data.join("up")).unwrap();
            fs::write(data.join(OsStr::from_bytes(b" odd\n\\040\xff")), "").unwrap();
        }
        let mut deep = data.join("deep");
        for _ in 0..40 {
            deep.push("level");
        }
        fs::create_dir_all(&deep).unwrap();
        let bound = data.join("bound here");
        fs::create_dir(&bound).unwrap();
        bind(&victim, &bound);
        // In a nested mount.
        fs::create_dir(bound.join("inner")).unwrap();
        tmpfs(&bound.join("inner"));
        node.is_torn_down().await;
        assert_precious(victim.join("sub/file"));
        made.assert_removed(node);
    });
}

macro_rules! cells {
    ($($name:ident: $kind:expr $(, $more:ident)?;)*) => {
        $(mod $name {
            #[test]
            fn clean() {
                super::clean($kind);
            }
            #[test]
            fn busy() {
                super::busy($kind);
            }
            #[test]
            fn crashed_mid_mount() {
                super::crashed_mid_mount($kind);
            }
            #[test]
            fn crashed_mid_unmount() {
                super::crashed_mid_unmount($kind);
            }
            $(#[test]
            fn $more() {
                super::$more($kind);
            })?
            #[test]
            fn hostile_content() {
                super::hostile_content($kind);
            }
        })*
    };
}

cells! {
    disk_empty_dir: super::Kind::DiskEmptyDir;
    memory_empty_dir: super::Kind::MemoryEmptyDir;
    huge_pages: super::Kind::HugePages;
    config_map: super::Kind::ConfigMap;
    secret: super::Kind::Secret;
    projected: super::Kind::Projected;
    downward_api: super::Kind::DownwardApi;
    host_path_sub_path: super::Kind::HostPath;
    nfs: super::Kind::Nfs;
    local_directory: super::Kind::LocalDirectory;
    local_device: super::Kind::LocalDevice;
    csi: super::Kind::Csi, driver_gone;
    csi_ephemeral: super::Kind::CsiEphemeral, driver_gone;
}

/// Raw block devices contain no files: their lock is busy, and a file instead of the link is hostile.
mod block {
    use super::*;

    fn local(space: &Space) -> (LoopDevice, PathBuf, PathBuf, LoopDevice) {
        let device = LoopDevice::attach(&image(space, "disk.img")).unwrap();
        let (map, link) = map_block(space, &device.path);
        let lock = LoopDevice::attach(&map).unwrap();
        (device, map, link, lock)
    }

    #[test]
    fn local_busy() {
        on(LocalDirectory, async |node| {
            let (device, map, link, lock) = local(node.space);
            let open = fs::File::open(&lock.path).unwrap();
            let why = node.fails().await;
            assert!(why.contains(lock.path.to_str().unwrap()), "{why}");
            assert!(link.is_symlink());
            drop(open);
            node.is_torn_down_soon().await;
            assert!(!map.exists() && !link.is_symlink() && device.is_attached());
        });
    }

    #[test]
    fn csi_busy() {
        on(Csi, async |node| {
            let disk = node.space.outside.join("disk");
            fs::write(&disk, vec![7; 1 << 20]).unwrap();
            let block = stage_and_publish_block(&node.space.root, UID, &PV, &disk, true).unwrap();
            let lock = block.lock.as_ref().unwrap();
            let open = fs::File::open(&lock.path).unwrap();
            let why = node.fails().await;
            assert!(why.contains(lock.path.to_str().unwrap()), "{why}");
            assert_eq!(node.calls(), [""; 0], "it stays while it is open");
            drop(open);
            node.is_torn_down_soon().await;
            node.assert_clean();
        });
    }
}
