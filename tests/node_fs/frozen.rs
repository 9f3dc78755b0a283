//! Frozen file systems.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

use nix::mount::{MsFlags, mount, umount};
use pod_teardown::node::{
    effects::Effects,
    fault::Cause,
    frozen::{self, Frozen},
    mounts::{Mounts, hanging, unmount},
    process_state::ProcessState,
    unmounts::CallsInFlight,
};

use crate::{
    images::{run, with_pods_on},
    space::{MOUNTINFO, wait_until},
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

fn state(child: &Child) -> ProcessState {
    let pid = i32::try_from(child.id()).unwrap();
    ProcessState::read(Path::new("/proc"), pid).unwrap().unwrap()
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
        let effects = Effects::ungated().with_call_timeout(Duration::from_secs(2));
        let fault = unmount(&volume, &effects).unwrap_err();
        assert!(matches!(fault.cause, Cause::Hangs(_)), "{fault}");
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
        mount(None::<&str>, &volume, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        // Even a directory that exists could not be created: its parent is frozen.
        fs::write(volume.join("data"), "precious").unwrap();
        drop(freeze);
        wait_until("the unmount ends", || hanging(&effects, |_| true).is_empty());
        assert_eq!(space.mounted(), std::slice::from_ref(&volume));
        assert_eq!(fs::read_to_string(volume.join("data")).unwrap(), "precious");
        umount(&volume).unwrap();
    });
}

#[test]
fn frozen_file_system_is_found_and_the_named_command_ends_the_wait() {
    with_pods_on(&["mkfs.ext4", "-q"], "loop", |space| {
        let pods = space.root.join("pods");
        let in_flight = std::sync::Arc::new(CallsInFlight::default());
        let find = || {
            let table = Mounts::new(MOUNTINFO, "/").read().unwrap();
            frozen::find(&table.mounts_at_or_below(&[&space.root]), &in_flight)
        };
        assert_eq!(find(), []);
        let _freeze = Freeze::of(&pods);
        let mut writer = Command::new("sh")
            .args(["-c", "echo data > \"$0\"/file"])
            .arg(space.pod.path())
            .spawn()
            .unwrap();
        wait_until("the write waits in the kernel", || {
            state(&writer).uninterruptible_in.as_deref() == Some(frozen::WAITS_IN)
        });
        let mut found = Vec::new();
        // A busy machine may not run the probe in time.
        for _ in 0..100 {
            found = find();
            if !found.is_empty() {
                break;
            }
        }
        let [Frozen { path, device }] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(path, &pods);
        assert!(device.starts_with("/dev/loop"), "{device}");
        assert_eq!(find(), found, "with the same thread");
        run("sh", &["-c".as_ref(), found[0].command().as_ref()]);
        assert!(writer.wait().unwrap().success());
        assert!(space.pod.path().join("file").exists());
        wait_until("the probe ends", || find().is_empty());
    });
}
