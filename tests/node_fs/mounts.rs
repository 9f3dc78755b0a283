//! Unmounting.

use std::{fs, os::unix::fs::symlink, path::PathBuf};

use pod_teardown::node::{
    effects::{Effects, Outcome},
    fault::Cause,
    mounts::unmount,
};
use rustix::io::Errno;

use crate::space::{bind, in_own_namespace, tmpfs, write};

#[test]
fn stacked_and_nested_mounts_all_go_in_one_call() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        for _ in 0..4 {
            tmpfs(&dir);
        }
        tmpfs(&dir.join("a/b"));
        tmpfs(&dir.join("a/b/c"));
        tmpfs(&dir.join("a/b/c"));
        let report = space
            .mounts
            .unmount_all_below(space.pod.path(), &Effects::ungated())
            .unwrap();
        assert_eq!((report.unmounted, space.mounted()), (7, Vec::<PathBuf>::new()));
        let again = space
            .mounts
            .unmount_all_below(space.pod.path(), &Effects::ungated())
            .unwrap();
        assert_eq!(again.unmounted, 0);
    });
}

#[test]
fn a_mount_that_another_covers_goes_once_it_is_uncovered() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        tmpfs(&dir.join("deep/er"));
        tmpfs(&dir);
        assert!(!dir.join("deep").exists(), "it is covered");
        space.mounts.unmount_all_at(&[&dir], &Effects::ungated()).unwrap();
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
    });
}

#[test]
fn strange_names_of_mount_points_are_found_and_unmounted() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        for name in [
            "a b",
            "line\nbreak",
            "tab\there",
            "back\\slash",
            "\\040",
            "#hash",
            "ünï",
            "//deleted",
            "x (deleted)",
        ] {
            tmpfs(&dir.join(name.trim_start_matches('/')));
        }
        assert_eq!(space.mounted().len(), 9);
        space.mounts.unmount_all_below(&dir, &Effects::ungated()).unwrap();
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
    });
}

#[test]
fn the_mount_on_the_directory_itself_stays_when_only_what_is_below_shall_go() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        tmpfs(&dir);
        tmpfs(&dir.join("in"));
        space.mounts.unmount_all_below(&dir, &Effects::ungated()).unwrap();
        assert_eq!(space.mounted(), [dir]);
    });
}

#[test]
fn a_busy_mount_is_reported_with_path_and_errno_and_the_others_go() {
    in_own_namespace(|space| {
        let (busy, free) = (space.volume("empty-dir", "busy"), space.volume("empty-dir", "free"));
        tmpfs(&busy);
        tmpfs(&free);
        let open = fs::File::create(busy.join("file")).unwrap();
        let still = space
            .mounts
            .unmount_all_below(space.pod.path(), &Effects::ungated())
            .unwrap_err();
        assert_eq!(still.faults.len(), 1);
        assert_eq!(
            (&still.faults[0].path, &still.faults[0].cause),
            (&busy, &Cause::Errno(Errno::BUSY))
        );
        assert_eq!(space.mounted(), [busy]);
        drop(open);
        space
            .mounts
            .unmount_all_below(space.pod.path(), &Effects::ungated())
            .unwrap();
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
    });
}

#[test]
fn a_mount_that_is_reached_only_through_a_link_is_not_unmounted() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        tmpfs(&space.outside.join("sub/mounted"));
        write(&space.outside.join("sub/mounted/data"), "precious");
        symlink(space.outside.join("sub"), dir.join("sub")).unwrap();
        symlink(space.outside.join("sub/mounted"), dir.join("mounted")).unwrap();
        let fault = unmount(&dir.join("sub/mounted"), &Effects::ungated()).unwrap_err();
        assert_eq!(fault.cause, Cause::Errno(Errno::LOOP));
        assert_eq!(unmount(&dir.join("mounted"), &Effects::ungated()), Ok(Outcome::Nothing));
        assert_eq!(
            fs::read_to_string(space.outside.join("sub/mounted/data")).unwrap(),
            "precious"
        );
    });
}

#[test]
fn a_bind_of_a_file_is_unmounted_and_the_file_stays() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        write(&space.outside.join("file"), "precious");
        write(&dir.join("target"), "");
        bind(&space.outside.join("file"), &dir.join("target"));
        assert_eq!(unmount(&dir.join("target"), &Effects::ungated()), Ok(Outcome::Done));
        assert_eq!(unmount(&dir.join("target"), &Effects::ungated()), Ok(Outcome::Nothing));
        assert_eq!(fs::read_to_string(space.outside.join("file")).unwrap(), "precious");
    });
}

#[test]
fn a_root_that_was_removed_under_its_mount_is_told_and_unmounted() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        fs::create_dir(space.outside.join("gone")).unwrap();
        bind(&space.outside.join("gone"), &dir);
        fs::remove_dir(space.outside.join("gone")).unwrap();
        let table = space.mounts.read().unwrap();
        assert!(table.on(&dir)[0].root_deleted);
        space.mounts.unmount_all_at(&[&dir], &Effects::ungated()).unwrap();
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
    });
}
