//! File systems in an image file, below the directories of pods.

use std::{ffi::OsStr, fs, process::Command};

use crate::space::{Space, UID, in_own_namespace};

pub fn run(name: &str, arguments: &[&OsStr]) {
    let done = Command::new(name).args(arguments).output().unwrap();
    assert!(
        done.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// Runs a test with the directories of pods on a file system of their own, made by `mkfs` and mounted with `options`.
pub fn with_pods_on(mkfs: &'static [&'static str], options: &'static str, test: impl FnOnce(&Space) + Send + 'static) {
    in_own_namespace(move |space| {
        let (image, pods) = (space.outside.join("image"), space.root.join("pods"));
        fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
        let mut arguments: Vec<&OsStr> = mkfs[1..].iter().map(OsStr::new).collect();
        arguments.push(image.as_os_str());
        run(mkfs[0], &arguments);
        run(
            "mount",
            &["-o".as_ref(), options.as_ref(), image.as_os_str(), pods.as_os_str()],
        );
        fs::create_dir(pods.join(UID)).unwrap();
        test(space);
        run("umount", &[pods.as_os_str()]);
    });
}
