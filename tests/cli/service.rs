//! `run` as a service. The tests act as systemd, and read its notification socket.

use std::{
    fs,
    io::{self, BufRead as _, Write as _},
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
    process::Stdio,
    time::Duration,
};

use nix::sys::signal::Signal;
use testbed::scripted_cri::{ScriptedCri, World};
use tokio::{net::UnixDatagram, time::timeout};

use crate::{
    command::Flags,
    run::{Agent, api},
};

/// Much longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// `WATCHDOG_USEC`. The agent notifies three times as often.
const WATCHDOG: Duration = Duration::from_millis(900);

/// systemd's end of the notification socket.
pub struct Systemd(UnixDatagram);

impl Systemd {
    pub fn listen(flags: &Flags) -> Self {
        Self(UnixDatagram::bind(flags.path("notify")).unwrap())
    }

    /// Adds systemd's environment variables to the flags.
    pub fn with_flags(flags: Flags) -> (Self, Flags) {
        let systemd = Self::listen(&flags);
        let socket = flags.path("notify").display().to_string();
        let flags = flags
            .by_variable("NOTIFY_SOCKET", &socket)
            .by_variable("WATCHDOG_USEC", &WATCHDOG.as_micros().to_string());
        (systemd, flags)
    }

    /// The next message; `None` after the timeout.
    pub async fn receive(&self, within: Duration) -> Option<Vec<String>> {
        let mut buffer = [0; 4096];
        let length = timeout(within, self.0.recv(&mut buffer)).await.ok()?.unwrap();
        let message = String::from_utf8(buffer[..length].to_vec()).unwrap();
        Some(message.lines().map(str::to_owned).collect())
    }

    /// All messages up to one with this prefix.
    pub async fn until(&self, what: &str) -> Vec<String> {
        let mut all = Vec::new();
        while !all.iter().any(|line: &String| line.starts_with(what)) {
            let message = self.receive(PATIENCE).await;
            all.extend(message.unwrap_or_else(|| panic!("never: {what}, but {all:?}")));
        }
        all
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn systemd_gets_readiness_status_watchdog_and_stop_notifications() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let (systemd, flags) = Systemd::with_flags(Flags::for_server(&api).with("cri-endpoint", cri.endpoint()));
    let mut agent = Agent::start(flags);
    assert_eq!(systemd.until("READY=").await, ["READY=1"], "before anything else");
    systemd.until("STATUS=standby: ").await;
    for _ in 0..3 {
        systemd.until("WATCHDOG=1").await;
    }
    assert_eq!(agent.terminate().await, Some(0));
    let last = systemd.until("STOPPING=1").await;
    assert!(last.iter().any(|line| line.starts_with("STATUS=stopping")), "{last:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_runtime_does_not_trigger_the_watchdog() {
    let (systemd, flags) = Systemd::with_flags(Flags::valid().with("mode", "always"));
    let mut agent = Agent::start(flags);
    systemd.until("STATUS=").await;
    for _ in 0..3 {
        systemd.until("WATCHDOG=1").await;
    }
    assert_eq!(agent.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_agent_sends_no_watchdog_notification_until_it_continues() {
    let cri = ScriptedCri::start(World::new()).await;
    let (systemd, flags) = Systemd::with_flags(Flags::valid().with("cri-endpoint", cri.endpoint()));
    let mut agent = Agent::start(flags);
    systemd.until("READY=1").await;
    systemd.until("WATCHDOG=1").await;

    agent.signal(Signal::SIGSTOP);
    // Earlier messages are still queued.
    while systemd.receive(WATCHDOG / 2).await.is_some() {}
    assert_eq!(systemd.receive(2 * WATCHDOG).await, None);

    agent.signal(Signal::SIGCONT);
    systemd.until("WATCHDOG=1").await;
    assert_eq!(agent.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn log_without_a_reader_does_not_block_and_reports_dropped_lines_later() {
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::valid()
        .with("cri-endpoint", cri.endpoint())
        .by_variable("RUST_LOG", "trace");
    let (systemd, flags) = Systemd::with_flags(flags);
    let (unread, log) = io::pipe().unwrap();
    let agent = Agent::start_with_log(flags, Stdio::from(log));
    systemd.until("READY=1").await;
    agent.fill_log_until_lines_are_dropped();
    for _ in 0..3 {
        systemd.until("WATCHDOG=1").await;
    }
    assert_eq!(agent.status()["node"], "n1");

    let lines = io::BufReader::new(unread).lines().map(Result::unwrap);
    let line = std::thread::spawn(|| lines.take(100_000).find(|line| line.contains("Log lines were dropped")));
    let line = timeout(PATIENCE, tokio::task::spawn_blocking(|| line.join().unwrap()));
    let line = line.await.unwrap().unwrap();
    let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
    assert!(line["lines"].as_u64() > Some(0), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_without_a_reader_of_its_log_stops_on_sigterm() {
    let (systemd, flags) = Systemd::with_flags(Flags::valid());
    let (_unread, log) = io::pipe().unwrap();
    // A second open makes this end non-blocking, while the agent's end blocks.
    let mut full = fs::File::options()
        .write(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", log.as_raw_fd()))
        .unwrap();
    while full.write(b".").is_ok() {}
    let mut agent = Agent::start_with_log(flags, Stdio::from(log));
    systemd.until("WATCHDOG=1").await;
    assert_eq!(agent.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn service_waits_for_missing_files_and_then_works() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::for_server(&api)
        .with("cri-endpoint", cri.endpoint())
        .with_path("kubeconfig", "later")
        .with_path("kubelet-config", "config.yaml");
    let [kubeconfig, later, config, pods] =
        ["kubeconfig", "later", "config.yaml", "kubelet/pods"].map(|name| flags.path(name));
    fs::remove_dir(&pods).unwrap();
    let (systemd, flags) = Systemd::with_flags(flags);
    let mut agent = Agent::start(flags);
    let messages = systemd.until("STATUS=").await;
    assert_eq!(messages[0], "READY=1", "systemd does not wait for the files");
    for word in ["STATUS=waiting: --kubeconfig", "later", "check that"] {
        assert!(messages[1].contains(word), "{word} is not in {messages:?}");
    }
    for flag in ["--kubeconfig", "--kubelet-root", "--kubelet-config"] {
        agent.wait_for_log(&format!("\"what\":\"{flag}")).await;
    }

    fs::create_dir(&pods).unwrap();
    fs::write(
        &config,
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n",
    )
    .unwrap();
    systemd.until("WATCHDOG=1").await;
    fs::copy(kubeconfig, &later).unwrap();
    agent.wait_for_log("Agent is running").await;
    systemd.until("STATUS=standby").await;
    assert_eq!(agent.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_setting_stops_a_service_even_if_files_are_missing() {
    let (_systemd, flags) =
        Systemd::with_flags(Flags::valid().with_path("kubeconfig", "later").with("node-name", "N_1"));
    let mut agent = Agent::start(flags);
    assert_eq!(agent.wait_for_exit().await, Some(64));
}

/// A kubeconfig that is just being written, a configuration of another kind, and directories that cannot be used yet.
#[tokio::test(flavor = "multi_thread")]
async fn service_waits_for_files_that_may_be_repaired_and_names_each_once() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::for_server(&api)
        .with("cri-endpoint", cri.endpoint())
        .with_path("kubelet-config", "config.yaml");
    let [kubeconfig, config, state, pods] =
        ["kubeconfig", "config.yaml", "state", "kubelet/pods"].map(|name| flags.path(name));
    let whole = fs::read_to_string(&kubeconfig).unwrap();
    fs::write(&kubeconfig, &whole[..whole.len() / 2]).unwrap();
    fs::write(&config, "kind: Pod\n").unwrap();
    fs::write(&state, "no directory").unwrap();
    fs::remove_dir(&pods).unwrap();
    fs::write(&pods, "no directory").unwrap();
    let (systemd, flags) = Systemd::with_flags(flags);
    let mut agent = Agent::start(flags);
    systemd.until("STATUS=waiting: --kubeconfig").await;
    let named = ["--kubeconfig", "--kubelet-root", "--kubelet-config", "--state-dir"];
    for flag in named {
        agent.wait_for_log(&format!("\"what\":\"{flag}")).await;
    }
    for _ in 0..3 {
        systemd.until("WATCHDOG=1").await;
    }
    for flag in named {
        assert_eq!(agent.log().matches(&format!("\"what\":\"{flag}")).count(), 1, "{flag}");
    }

    for file in [&state, &pods] {
        fs::remove_file(file).unwrap();
    }
    fs::create_dir(&pods).unwrap();
    fs::write(
        &config,
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n",
    )
    .unwrap();
    fs::write(&kubeconfig, whole).unwrap();
    agent.wait_for_log("Agent is running").await;
    systemd.until("STATUS=standby").await;
    assert_eq!(agent.terminate().await, Some(0));
}

/// What only the start itself finds: the settings are valid.
#[tokio::test(flavor = "multi_thread")]
async fn service_that_cannot_start_yet_tries_again_and_stops_when_it_is_told_to() {
    let started = async |repairs: bool| {
        let flags = Flags::valid().with("mode", "always");
        let socket = flags.path("run/agent.sock");
        fs::create_dir_all(flags.path("state")).unwrap();
        std::os::unix::fs::symlink("nowhere", flags.path("state/journal.redb")).unwrap();
        let journal = flags.path("state/journal.redb");
        let (systemd, flags) = Systemd::with_flags(flags);
        let mut agent = Agent::start(flags);
        systemd.until("STATUS=waiting: --state-dir").await;
        if repairs {
            fs::remove_file(journal).unwrap();
            agent.until("it answers", |_| socket.exists()).await;
        } else {
            systemd.until("WATCHDOG=1").await;
        }
        agent.terminate().await
    };
    assert_eq!(started(true).await, Some(0));
    assert_eq!(started(false).await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn log_goes_to_standard_error_unless_that_is_the_journal() {
    let flags = Flags::valid().by_variable("JOURNAL_STREAM", "1:1");
    let mut agent = Agent::start(flags);
    agent.wait_for_log("Container runtime is unreachable").await;
    assert_eq!(agent.terminate().await, Some(0));
    let lines = agent.log();
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["level"].is_string()), "{lines:?}");
}
