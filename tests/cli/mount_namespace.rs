//! An agent in its own mount namespace refuses to work, because its unmounts would not affect the node. A test can also replace
//! the journal's socket there.

use std::{
    fs::Permissions,
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram, process::CommandExt as _},
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use testbed::{
    command::copy_program,
    scripted_cri::{ScriptedCri, World},
};
use tokio::task::spawn_blocking;

use crate::{
    command::{CommandOutput, Flags, output_of},
    run::{Agent, api},
    service::Systemd,
};

/// Makes `$1` the directory of the journal's socket, marks standard error as the journal, and runs the remaining arguments.
const WITH_FAKE_JOURNAL: &str = "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd && ln -s \"$1\" /run/systemd/journal && shift && \
    JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) exec \"$@\"";

/// Runs the command like a unit with `PrivateMounts=`.
fn unshared(flags: &Flags, verb: &str) -> CommandOutput {
    let command = flags.command(verb);
    let mut inside = Command::new("unshare");
    inside
        .arg("--mount")
        .arg(command.get_program())
        .args(command.get_args());
    inside.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    output_of(&mut inside)
}

#[tokio::test(flavor = "multi_thread")]
async fn run_and_check_refuse_to_work_in_their_own_mount_namespace() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::for_server(&api).with("cri-endpoint", cri.endpoint());
    let (run, check) = spawn_blocking(move || (unshared(&flags, "run"), unshared(&flags, "check")))
        .await
        .unwrap();
    for (output, text) in [(&run, &run.err), (&check, &check.out)] {
        assert_eq!(output.code, Some(78), "{output:?}");
        for word in ["not in the mount namespace of the container runtime", "PrivateMounts="] {
            assert!(text.contains(word), "{word} is not in {output:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_journal_does_not_block_the_agent_and_gets_the_number_of_dropped_lines_later() {
    let (systemd, flags) = Systemd::with_flags(Flags::valid().by_variable("RUST_LOG", "trace"));
    let dir = flags.path("journal");
    std::fs::create_dir(&dir).unwrap();
    let journal = UnixDatagram::bind(dir.join("socket")).unwrap();
    let command = flags.command("run");
    let mut inside = Command::new("unshare");
    inside
        .args(["--mount", "sh", "-c", WITH_FAKE_JOURNAL, "sh"])
        .arg(&dir)
        .arg(command.get_program())
        .args(command.get_args())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap());
    for (name, value) in command.get_envs() {
        inside.env(name, value.unwrap());
    }
    let agent = Agent::start_as(flags, inside);
    systemd.until("READY=1").await;
    agent.fill_log_until_lines_are_dropped();
    for _ in 0..3 {
        systemd.until("WATCHDOG=1").await;
    }
    assert_eq!(agent.status()["node"], "n1");

    journal.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let reader = thread::spawn(move || {
        let mut entry = vec![0; 1 << 20];
        loop {
            let length = journal.recv(&mut entry).unwrap();
            let entry = String::from_utf8_lossy(&entry[..length]).into_owned();
            if entry.contains("Log lines were dropped") {
                return entry;
            }
        }
    });
    let entry = spawn_blocking(|| reader.join().unwrap()).await.unwrap();
    assert!(entry.contains("LINES\n"), "{entry}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_root_is_answered_regardless_of_the_sockets_mode() {
    let mut agent = Agent::start(Flags::valid());
    agent.wait_for_log("Container runtime is unreachable").await;
    let program = agent.flags.path("pod-teardown");
    copy_program(env!("CARGO_BIN_EXE_pod-teardown"), &program).unwrap();
    let open = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    open(&agent.flags.path(""), 0o755);
    open(agent.flags.socket().parent().unwrap(), 0o755);
    open(agent.flags.socket(), 0o666);
    for verb in [&["status"][..], &["pause"]] {
        let mut query = Command::new(&program);
        query
            .env_clear()
            .uid(65534)
            .args(verb)
            .arg("--socket")
            .arg(agent.flags.socket());
        let output = spawn_blocking(move || output_of(&mut query)).await.unwrap();
        assert_eq!((output.code, output.error_lines().len()), (Some(1), 1), "{output:?}");
        assert!(
            output.err.contains("only root may send requests, not uid 65534"),
            "{output:?}"
        );
    }
    assert!(agent.status()["node"].is_string());
    agent.wait_for_log("Admin request refused").await;
    assert_eq!(agent.terminate().await, Some(0));
}
