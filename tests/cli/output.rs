//! Output that nobody takes: whoever closes a pipe has read enough, a full disk is said, and no log line ends the agent.

use std::{
    fs::{self, File},
    process::{Command, Output, Stdio},
};

use crate::command::Flags;

fn into(mut command: Command, out: impl Into<Stdio>) -> Output {
    command.stdout(out).stderr(Stdio::piped());
    command.spawn().unwrap().wait_with_output().unwrap()
}

/// A pipe whose reader has gone.
fn closed() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

#[test]
fn output_that_nobody_reads_changes_nothing_and_a_full_disk_is_said() {
    let flags = Flags::good().without("kubeconfig");
    let unread = into(flags.command("check"), closed());
    assert_eq!((unread.status.code(), unread.stderr.as_slice()), (Some(64), &b""[..]));

    let lost = into(flags.command("check"), full());
    let said = String::from_utf8(lost.stderr).unwrap();
    assert_eq!((lost.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("standard output: No space left"), "{said}");
}

#[test]
fn complaints_that_nobody_reads_leave_the_exit_code_as_it_is() {
    for stderr in [closed(), full().into()] {
        let mut command = Flags::good().without("kubeconfig").command("run");
        assert_eq!(command.stderr(stderr).status().unwrap().code(), Some(64));
    }
}

/// Whoever runs it in earnest must not be able to stop it by a variable.
#[test]
fn a_binary_has_the_points_of_the_crash_matrix_only_if_it_was_built_for_it() {
    let binary = fs::read(env!("CARGO_BIN_EXE_pod-teardown")).unwrap();
    let name = b"POD_TEARDOWN_CHECKPOINTS";
    let has = binary.windows(name.len()).any(|part| part == name);
    assert_eq!(has, cfg!(feature = "system-tests"));
}
