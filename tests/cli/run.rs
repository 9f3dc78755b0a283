//! The process of `run`: what it waits for, its errors and its exit.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    process::Stdio,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use testbed::{
    apiserver::{Config, MemApiServer},
    scripted_cri::{ScriptedCri, World},
};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use crate::command::{Flags, NODE};

/// Much longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Agent {
    child: Child,
    pub flags: Flags,
}

impl Agent {
    pub fn start(flags: Flags) -> Self {
        let log = fs::File::create(flags.path("log")).unwrap();
        Self::start_with_log(flags, log.into())
    }

    pub fn start_with_log(flags: Flags, log: Stdio) -> Self {
        let command = flags.command("run");
        Self::spawn(flags, command, log)
    }

    #[cfg(feature = "system-tests")]
    pub fn start_as(flags: Flags, command: std::process::Command) -> Self {
        let log = fs::File::create(flags.path("log")).unwrap();
        Self::spawn(flags, command, log.into())
    }

    fn spawn(flags: Flags, command: std::process::Command, log: Stdio) -> Self {
        let mut command = Command::from(command);
        let child = command
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self { child, flags }
    }

    pub fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.flags.path("log")).unwrap_or_default()
    }

    pub async fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < deadline, "never: {what}\n{}", self.log());
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("ended with {status} before: {what}\n{}", self.log());
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn until_it_watches(&mut self) {
        self.until("it watches", |agent| agent.status()["watch"]["state"] == "watching")
            .await;
    }

    /// Sends requests, each of which is logged, until log lines are dropped.
    pub fn fill_log_until_lines_are_dropped(&self) {
        let request = || {
            let mut stream = UnixStream::connect(self.flags.socket()).unwrap();
            let text = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            stream.write_all(text).unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
        };
        let deadline = Instant::now() + 4 * PATIENCE;
        while self.status()["logLinesDropped"].as_u64() == Some(0) {
            assert!(Instant::now() < deadline, "no line is dropped");
            (0..500).for_each(|_| request());
        }
    }

    pub async fn wait_for_log(&mut self, words: &str) {
        self.until(words, |agent| agent.log().contains(words)).await;
    }

    pub async fn wait_for_exit(&mut self) -> Option<i32> {
        timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap().code()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    pub async fn terminate(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.wait_for_exit().await
    }

    pub fn status(&self) -> serde_json::Value {
        let socket = self.flags.socket().to_str().unwrap();
        let output = crate::command::run_command(&["status", "-ojson", "--socket", socket]);
        serde_json::from_str(&output.out).unwrap_or_default()
    }
}

pub async fn api() -> MemApiServer {
    let nodes = vec![NODE.to_owned()];
    let config = Config {
        nodes,
        ..Config::default()
    };
    MemApiServer::start(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_waits_for_the_runtime_and_then_works() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    cri.stop().await;
    fs::remove_file(cri.path()).ok();
    let mut agent = Agent::start(Flags::for_server(&api).with("cri-endpoint", cri.endpoint()));
    agent.wait_for_log("Container runtime is unreachable").await;
    cri.start_again().await;
    agent.until_it_watches().await;
    assert_eq!(agent.terminate().await, Some(0));
    assert!(!agent.flags.socket().exists());
}

/// A power cut may empty the settings of the service, and an unreadable file counts as missing for systemd.
#[tokio::test(flavor = "multi_thread")]
async fn agent_without_settings_only_observes_and_status_says_how_it_may_act() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::for_server(&api).without("mode");
    let mut agent = Agent::start(flags.with("cri-endpoint", cri.endpoint()));
    agent.until_it_watches().await;
    let socket = agent.flags.socket().to_str().unwrap();
    let status = crate::command::run_command(&["status", "--socket", socket]).out;
    assert!(status.starts_with("Role      observing"), "{status}");
    assert!(
        status.contains("add POD_TEARDOWN_MODE=auto to /etc/default/pod-teardown"),
        "{status}"
    );
    assert_eq!(agent.terminate().await, Some(0));
}

/// The variable is a standard: it may be meant for other programs.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_address_for_traces_is_logged_and_the_agent_works_without() {
    let mut agent = Agent::start(Flags::valid().with("otlp-endpoint", "127.0.0.1:4317"));
    agent.wait_for_log("Traces are not exported").await;
    agent.wait_for_log("Container runtime is unreachable").await;
    assert!(agent.log().contains("it has no scheme and host"), "{}", agent.log());
    assert_eq!(agent.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_stops_on_sigterm_while_it_waits_for_the_runtime() {
    let mut agent = Agent::start(Flags::valid());
    agent.wait_for_log("Container runtime is unreachable").await;
    assert_eq!(agent.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_works_without_a_reader_of_its_log() {
    let (_, closed) = std::io::pipe().unwrap();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    for log in [Stdio::from(closed), Stdio::from(full)] {
        let cri = ScriptedCri::start(World::new()).await;
        let flags = Flags::valid().with("cri-endpoint", cri.endpoint());
        let mut agent = Agent::start_with_log(flags, log);
        agent
            .until("the watch has an error, which is logged", |agent| {
                agent.status()["watch"]["error"].is_string()
            })
            .await;
        assert_eq!(agent.terminate().await, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn service_without_cri_is_a_configuration_error() {
    let cri = ScriptedCri::start(World::new()).await;
    cri.speak_another_protocol().await;
    let mut agent = Agent::start(Flags::valid().with("cri-endpoint", cri.endpoint()));
    assert_eq!(agent.wait_for_exit().await, Some(78));
    let log = agent.log();
    let error = log
        .lines()
        .find(|line| line.starts_with("pod-teardown: "))
        .expect("an error");
    for word in ["--cri-endpoint", "does not speak CRI", "containerd or CRI-O"] {
        assert!(error.contains(word), "{word:?} is not in {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_waits_for_its_node_and_status_shows_the_error() {
    let api = MemApiServer::start(Config::default()).await.unwrap();
    let cri = ScriptedCri::start(World::new()).await;
    let mut agent = Agent::start(Flags::for_server(&api).with("cri-endpoint", cri.endpoint()));
    agent
        .until("the watch has an error", |agent| {
            agent.status()["watch"]["error"].is_string()
        })
        .await;
    let error = agent.status()["watch"]["error"].as_str().unwrap().to_owned();
    assert!(error.contains("404") && error.contains(NODE), "{error}");
    let node = serde_json::json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
    api.insert_raw(node).unwrap();
    agent.until_it_watches().await;
    assert_eq!(agent.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn second_agent_of_a_node_names_the_first_and_exits() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let mut first = Agent::start(Flags::for_server(&api).with("cri-endpoint", cri.endpoint()));
    first.until_it_watches().await;
    let pods = first.flags.path("kubelet");
    let second = Flags::for_server(&api)
        .with("cri-endpoint", cri.endpoint())
        .with("kubelet-root", pods.display().to_string());
    let mut second = Agent::start(second);
    assert_eq!(second.wait_for_exit().await, Some(1));
    let pid = format!("process {}", first.child.id().unwrap());
    assert!(
        second.log().contains(&pid) && second.log().contains("stop the other agent first"),
        "{}",
        second.log()
    );
    assert!(first.status()["watch"]["state"] == "watching");
    assert_eq!(first.terminate().await, Some(0));
}
