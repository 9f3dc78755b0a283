//! Frozen file systems.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use nix::mount::{MsFlags, mount, umount};
use pod_teardown::node::{
    effects::Effects,
    fault::Cause,
    mounts::{hanging, unmount},
    unmounts::Unmounting,
};

use crate::{
    images::{run, with_pods_on},
    space::{assert_precious, wait_until},
};

/// Thaws the file system on drop: nothing else would, and no write to it could be killed.
struct Freeze(PathBuf);

impl Freeze {
    fn of(path: &Path) -> Self {
        let freeze = Self(path.to_owned());
        run("fsfreeze", &["-f".as_ref(), path.as_os_str()]);
        freeze
    }
}

impl Drop for Freeze {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(&self.0).output();
    }
}

/// The path is resolved before the kernel waits. So a kubelet that has returned may mount there.
#[test]
fn hung_unmount_ends_without_a_later_mount_of_that_path() {
    with_pods_on(&["mkfs.ext4", "-q"], "loop", |space| {
        let (image, volume) = (space.root.join("pods/image"), space.volume("empty-dir", "v"));
        fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
        run("mkfs.ext4", &["-q".as_ref(), image.as_os_str()]);
        let arguments = ["-o".as_ref(), "loop".as_ref(), image.as_os_str(), volume.as_os_str()];
        run("mount", &arguments);
        fs::write(volume.join("data"), vec![1; 1 << 20]).unwrap();
        let freeze = Freeze::of(&space.root.join("pods"));
        let effects = Effects::ungated().with_unmounting(Unmounting {
            call_timeout: Duration::from_secs(2),
            ..Unmounting::default()
        });
        let fault = unmount(&volume, &effects).unwrap_err();
        assert!(matches!(fault.cause, Cause::Hangs(_)), "{fault}");
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
        mount(None::<&str>, &volume, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        // Even a directory that exists could not be created: its parent is frozen.
        fs::write(volume.join("data"), "precious").unwrap();
        drop(freeze);
        wait_until("the unmount ends", || hanging(&effects, |_| true).is_empty());
        assert_eq!(space.mounted(), std::slice::from_ref(&volume));
        assert_precious(volume.join("data"));
        umount(&volume).unwrap();
    });
}
