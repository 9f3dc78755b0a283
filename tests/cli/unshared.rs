//! What starts in a mount namespace of its own refuses to work: nothing that it unmounts would be unmounted on the node. Only
//! there a test can be the journal.

use std::{
    fs::Permissions,
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram, process::CommandExt as _},
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use testbed::scripted_cri::{ScriptedCri, World};
use tokio::task::spawn_blocking;

use crate::{
    command::{Flags, Told, tell},
    run::{Agent, api},
    service::Systemd,
};

/// Has `$1` where the journal listens, standard error count as the journal, and then runs the rest.
const BESIDE_JOURNAL: &str = "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd && ln -s \"$1\" /run/systemd/journal && shift && \
    JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) exec \"$@\"";

/// The command as a unit with PrivateMounts= would start it.
fn unshared(flags: &Flags, verb: &str) -> Told {
    let command = flags.command(verb);
    let mut inside = Command::new("unshare");
    inside
        .arg("--mount")
        .arg(command.get_program())
        .args(command.get_args());
    inside.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    tell(&mut inside)
}

#[tokio::test(flavor = "multi_thread")]
async fn run_and_check_refuse_to_work_in_a_mount_namespace_of_their_own() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::at(&api).with("cri-endpoint", cri.endpoint());
    let (run, check) = spawn_blocking(move || (unshared(&flags, "run"), unshared(&flags, "check")))
        .await
        .unwrap();
    for (told, said) in [(&run, &run.err), (&check, &check.out)] {
        assert_eq!(told.code, Some(78), "{told:?}");
        for word in ["not in the mount namespace of the container runtime", "PrivateMounts="] {
            assert!(said.contains(word), "{word} is not in {told:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_takes_nothing_blocks_nothing_and_gets_the_number_of_dropped_lines_later() {
    let (systemd, flags) = Systemd::starts(Flags::good().by_variable("RUST_LOG", "trace"));
    let dir = flags.path("journal");
    std::fs::create_dir(&dir).unwrap();
    let journal = UnixDatagram::bind(dir.join("socket")).unwrap();
    let command = flags.command("run");
    let mut inside = Command::new("unshare");
    inside
        .args(["--mount", "sh", "-c", BESIDE_JOURNAL, "sh"])
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
    agent.is_asked_until_log_lines_are_dropped();
    for _ in 0..3 {
        systemd.until("WATCHDOG=1").await;
    }
    assert_eq!(agent.status()["node"], "n1");

    journal.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let hears = thread::spawn(move || {
        let mut entry = vec![0; 1 << 20];
        loop {
            let length = journal.recv(&mut entry).unwrap();
            let entry = String::from_utf8_lossy(&entry[..length]).into_owned();
            if entry.contains("Log lines were dropped") {
                return entry;
            }
        }
    });
    let heard = spawn_blocking(|| hears.join().unwrap()).await.unwrap();
    assert!(heard.contains("LINES\n"), "{heard}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_root_is_answered_whatever_the_mode_of_the_socket() {
    let mut agent = Agent::start(Flags::good());
    agent.says("Container runtime is not to be had").await;
    let program = agent.flags.path("pod-teardown");
    std::fs::copy(env!("CARGO_BIN_EXE_pod-teardown"), &program).unwrap();
    let open = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    open(&agent.flags.path(""), 0o755);
    open(agent.flags.socket().parent().unwrap(), 0o755);
    open(agent.flags.socket(), 0o666);
    for verb in [&["status"][..], &["pause"]] {
        let mut asks = Command::new(&program);
        asks.env_clear()
            .uid(65534)
            .args(verb)
            .arg("--socket")
            .arg(agent.flags.socket());
        let told = spawn_blocking(move || tell(&mut asks)).await.unwrap();
        assert_eq!((told.code, told.complaints().len()), (Some(1), 1), "{told:?}");
        assert!(told.err.contains("only root may ask, and not uid 65534"), "{told:?}");
    }
    assert!(agent.status()["node"].is_string());
    agent.says("Admin request refused").await;
    assert_eq!(agent.terminate().await, Some(0));
}
