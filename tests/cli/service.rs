//! `run` as a service: what systemd hears of it. The tests are systemd: theirs is the socket that it is told of.

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

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long an agent may be silent; a third of it is how often it speaks.
const WATCHDOG: Duration = Duration::from_millis(900);

/// The end of systemd.
pub struct Systemd(UnixDatagram);

impl Systemd {
    pub fn listen(flags: &Flags) -> Self {
        Self(UnixDatagram::bind(flags.path("notify")).unwrap())
    }

    /// Flags of an agent that it has started.
    pub fn starts(flags: Flags) -> (Self, Flags) {
        let systemd = Self::listen(&flags);
        let socket = flags.path("notify").display().to_string();
        let flags = flags
            .by_variable("NOTIFY_SOCKET", &socket)
            .by_variable("WATCHDOG_USEC", &WATCHDOG.as_micros().to_string());
        (systemd, flags)
    }

    /// What it hears next, if that is soon enough.
    pub async fn hears(&self, within: Duration) -> Option<Vec<String>> {
        let mut told = [0; 4096];
        let length = timeout(within, self.0.recv(&mut told)).await.ok()?.unwrap();
        let told = String::from_utf8(told[..length].to_vec()).unwrap();
        Some(told.lines().map(str::to_owned).collect())
    }

    /// All that it hears until somebody says this; with that.
    pub async fn until(&self, what: &str) -> Vec<String> {
        let mut all = Vec::new();
        while !all.iter().any(|line: &String| line.starts_with(what)) {
            let told = self.hears(PATIENCE).await;
            all.extend(told.unwrap_or_else(|| panic!("never: {what}, but {all:?}")));
        }
        all
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn systemd_hears_that_it_is_ready_then_how_it_is_and_that_it_lives_and_that_it_stops() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let (systemd, flags) = Systemd::starts(Flags::at(&api).with("cri-endpoint", cri.endpoint()));
    let mut agent = Agent::start(flags);
    assert_eq!(systemd.until("READY=").await, ["READY=1"], "before anything else");
    systemd.until("STATUS=standing by: ").await;
    for _ in 0..3 {
        systemd.until("WATCHDOG=1").await;
    }
    assert_eq!(agent.terminate().await, Some(0));
    let last = systemd.until("STOPPING=1").await;
    assert!(last.iter().any(|line| line.starts_with("STATUS=stopping")), "{last:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_is_away_is_no_reason_to_be_started_again() {
    let (systemd, flags) = Systemd::starts(Flags::good().with("pods", "always"));
    let mut agent = Agent::start(flags);
    systemd.until("STATUS=").await;
    for _ in 0..3 {
        systemd.until("WATCHDOG=1").await;
    }
    assert_eq!(agent.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_no_sign_of_life_gets_none() {
    let flags = Flags::good();
    let systemd = Systemd::listen(&flags);
    let socket = flags.path("notify").display().to_string();
    let mut agent = Agent::start(flags.by_variable("NOTIFY_SOCKET", &socket));
    systemd.until("STATUS=").await;
    agent.says("Container runtime is not to be had").await;
    assert_eq!(agent.terminate().await, Some(0));
    let rest = systemd.hears(Duration::from_millis(100)).await.unwrap_or_default();
    assert!(rest.iter().all(|line| !line.starts_with("WATCHDOG")), "{rest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_stuck_gives_no_sign_of_life_until_it_is_free_again() {
    let cri = ScriptedCri::start(World::new()).await;
    let (systemd, flags) = Systemd::starts(Flags::good().with("cri-endpoint", cri.endpoint()));
    let mut agent = Agent::start(flags);
    systemd.until("READY=1").await;
    systemd.until("WATCHDOG=1").await;

    agent.signal(Signal::SIGSTOP);
    // What was said before is heard yet.
    while systemd.hears(WATCHDOG / 2).await.is_some() {}
    assert_eq!(systemd.hears(2 * WATCHDOG).await, None);

    agent.signal(Signal::SIGCONT);
    systemd.until("WATCHDOG=1").await;
    assert_eq!(agent.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_without_a_reader_blocks_nothing_and_reports_dropped_lines_later() {
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::good()
        .with("cri-endpoint", cri.endpoint())
        .by_variable("RUST_LOG", "trace");
    let (systemd, flags) = Systemd::starts(flags);
    let (unread, log) = io::pipe().unwrap();
    let agent = Agent::start_with_log(flags, Stdio::from(log));
    systemd.until("READY=1").await;
    agent.is_asked_until_log_lines_are_dropped();
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
async fn an_agent_whose_log_has_no_reader_stops_on_sigterm() {
    let (systemd, flags) = Systemd::starts(Flags::good());
    let (_unread, log) = io::pipe().unwrap();
    // Opened again, this end does not block, and the agent's end does.
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
async fn a_service_waits_for_files_that_are_not_there_yet_and_goes_on_when_they_come() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::at(&api)
        .with("cri-endpoint", cri.endpoint())
        .with_path("kubeconfig", "later")
        .with_path("kubelet-config", "config.yaml");
    let [kubeconfig, later, config, pods] =
        ["kubeconfig", "later", "config.yaml", "kubelet/pods"].map(|name| flags.path(name));
    fs::remove_dir(&pods).unwrap();
    let (systemd, flags) = Systemd::starts(flags);
    let mut agent = Agent::start(flags);
    let told = systemd.until("STATUS=").await;
    assert_eq!(told[0], "READY=1", "its start is not waited for");
    for word in ["STATUS=waiting: --kubeconfig", "later", "check that"] {
        assert!(told[1].contains(word), "{word} is not in {told:?}");
    }
    for flag in ["--kubeconfig", "--kubelet-root", "--kubelet-config"] {
        agent.says(&format!("\"what\":\"{flag}")).await;
    }

    fs::create_dir(&pods).unwrap();
    fs::write(
        &config,
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n",
    )
    .unwrap();
    systemd.until("WATCHDOG=1").await;
    fs::copy(kubeconfig, &later).unwrap();
    agent.says("Agent is running").await;
    systemd.until("STATUS=standing by").await;
    assert_eq!(agent.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_ends_a_service_whatever_else_is_missing() {
    let (_systemd, flags) = Systemd::starts(Flags::good().with_path("kubeconfig", "later").with("node-name", "N_1"));
    let mut agent = Agent::start(flags);
    assert_eq!(agent.ended().await, Some(64));

    let (systemd, flags) = Systemd::starts(Flags::good().with_path("kubeconfig", "later"));
    let later = flags.path("later");
    let mut agent = Agent::start(flags);
    systemd.until("STATUS=waiting").await;
    fs::write(later, "no kubeconfig, and it stays so").unwrap();
    assert_eq!(agent.ended().await, Some(78));
    assert!(agent.log().contains("pod-teardown: --kubeconfig"), "{}", agent.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_go_to_standard_error_where_that_is_not_the_journal() {
    let flags = Flags::good().by_variable("JOURNAL_STREAM", "1:1");
    let mut agent = Agent::start(flags);
    agent.says("Container runtime is not to be had").await;
    assert_eq!(agent.terminate().await, Some(0));
    let lines = agent.log();
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["level"].is_string()), "{lines:?}");
}
