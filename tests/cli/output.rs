//! Output to closed pipes and full disks.

use std::{
    fs::{self, File},
    process::{Command, Output, Stdio},
};

use crate::command::{Flags, command};

fn into(mut command: Command, out: impl Into<Stdio>) -> Output {
    command.stdout(out).stderr(Stdio::piped());
    command.spawn().unwrap().wait_with_output().unwrap()
}

/// A pipe without a reader.
fn closed() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

#[test]
fn closed_pipe_is_ignored_and_a_full_disk_is_reported() {
    let flags = Flags::valid().without("kubeconfig");
    let unread = into(flags.command("check"), closed());
    assert_eq!((unread.status.code(), unread.stderr.as_slice()), (Some(78), &b""[..]));

    let lost = into(flags.command("check"), full());
    let error = String::from_utf8(lost.stderr).unwrap();
    assert_eq!((lost.status.code(), error.lines().count()), (Some(1), 1), "{error}");
    assert!(error.contains("standard output: No space left"), "{error}");
}

#[test]
fn unread_errors_do_not_change_the_exit_code() {
    for stderr in [closed(), full().into()] {
        let mut command = Flags::valid().without("kubeconfig").command("run");
        assert_eq!(command.stderr(stderr).status().unwrap().code(), Some(78));
    }
}

/// A variable must not stop a production build.
#[test]
fn only_a_test_build_has_the_checkpoints_of_the_crash_matrix() {
    let binary = fs::read(env!("CARGO_BIN_EXE_pod-teardown")).unwrap();
    let name = b"POD_TEARDOWN_CHECKPOINTS";
    let has = binary.windows(name.len()).any(|part| part == name);
    assert_eq!(has, cfg!(feature = "system-tests"));
}

#[test]
fn help_has_no_colors_in_a_pipe() {
    let help = command().args(["stop", "--help"]).output().unwrap();
    assert!(help.stdout.starts_with(b"Stop a pod") && !help.stdout.contains(&0x1b));
}
