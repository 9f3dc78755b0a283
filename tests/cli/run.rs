//! `run` as a process: what it waits for, what it refuses, and how it ends.

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

/// Far longer than anything here takes.
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
        let late = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < late, "never: {what}\n{}", self.log());
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("ended with {status} before: {what}\n{}", self.log());
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Each request is a line of the log.
    pub fn is_asked_until_log_lines_are_dropped(&self) {
        let ask = || {
            let mut stream = UnixStream::connect(self.flags.socket()).unwrap();
            let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            stream.write_all(request).unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
        };
        let late = Instant::now() + 4 * PATIENCE;
        while self.status()["logLinesDropped"].as_u64() == Some(0) {
            assert!(Instant::now() < late, "no line is dropped");
            (0..500).for_each(|_| ask());
        }
    }

    pub async fn says(&mut self, words: &str) {
        self.until(words, |agent| agent.log().contains(words)).await;
    }

    pub async fn ended(&mut self) -> Option<i32> {
        timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap().code()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    pub async fn terminate(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.ended().await
    }

    pub fn status(&self) -> serde_json::Value {
        let socket = self.flags.socket().to_str().unwrap();
        let told = crate::command::told(&["status", "--json", "--socket", socket]);
        serde_json::from_str(&told.out).unwrap_or_default()
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
async fn a_runtime_that_is_not_there_yet_is_waited_for_and_work_begins_when_it_is() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    cri.stop().await;
    fs::remove_file(cri.path()).ok();
    let mut agent = Agent::start(Flags::at(&api).with("cri-endpoint", cri.endpoint()));
    agent.says("Container runtime is not to be had").await;
    cri.start_again().await;
    agent
        .until("it watches", |agent| agent.status()["watch"]["state"] == "watching")
        .await;
    assert_eq!(agent.terminate().await, Some(0));
    assert!(!agent.flags.socket().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_when_told_also_while_it_waits_for_the_runtime() {
    let mut agent = Agent::start(Flags::good());
    agent.says("Container runtime is not to be had").await;
    assert_eq!(agent.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_when_nobody_takes_its_log() {
    let (_, closed) = std::io::pipe().unwrap();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    for log in [Stdio::from(closed), Stdio::from(full)] {
        let cri = ScriptedCri::start(World::new()).await;
        let flags = Flags::good().with("cri-endpoint", cri.endpoint());
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
async fn what_listens_there_and_speaks_something_else_is_a_mistake() {
    let cri = ScriptedCri::start(World::new()).await;
    cri.speak_another_protocol().await;
    let mut agent = Agent::start(Flags::good().with("cri-endpoint", cri.endpoint()));
    assert_eq!(agent.ended().await, Some(78));
    let log = agent.log();
    let complaint = log
        .lines()
        .find(|line| line.starts_with("pod-teardown: "))
        .expect("a complaint");
    for word in ["--cri-endpoint", "does not speak CRI", "containerd or CRI-O"] {
        assert!(complaint.contains(word), "{word:?} is not in {complaint}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_is_waited_for_and_status_says_so() {
    let cri = ScriptedCri::start(World::new()).await;
    let mut agent = Agent::start(Flags::good().with("cri-endpoint", cri.endpoint()));
    agent
        .until("the watch has an error", |agent| {
            agent.status()["watch"]["error"].is_string()
        })
        .await;
    assert_eq!(agent.status()["watch"]["state"], "connecting");
    assert!(
        agent.status()["held"].as_str().unwrap().contains("has not been seen"),
        "{}",
        agent.status()
    );
    assert_eq!(agent.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_exist_is_waited_for_and_status_says_so() {
    let api = MemApiServer::start(Config::default()).await.unwrap();
    let cri = ScriptedCri::start(World::new()).await;
    let mut agent = Agent::start(Flags::at(&api).with("cri-endpoint", cri.endpoint()));
    agent
        .until("the watch has an error", |agent| {
            agent.status()["watch"]["error"].is_string()
        })
        .await;
    let error = agent.status()["watch"]["error"].as_str().unwrap().to_owned();
    assert!(error.contains("404") && error.contains(NODE), "{error}");
    let node = serde_json::json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
    api.insert_raw(node).unwrap();
    agent
        .until("it watches", |agent| agent.status()["watch"]["state"] == "watching")
        .await;
    assert_eq!(agent.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_agent_of_a_node_names_the_first_and_ends() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let mut first = Agent::start(Flags::at(&api).with("cri-endpoint", cri.endpoint()));
    first
        .until("it watches", |agent| agent.status()["watch"]["state"] == "watching")
        .await;
    let pods = first.flags.path("kubelet");
    let second = Flags::at(&api)
        .with("cri-endpoint", cri.endpoint())
        .with("kubelet-root", pods.display().to_string());
    let mut second = Agent::start(second);
    assert_eq!(second.ended().await, Some(1));
    let pid = format!("process {}", first.child.id().unwrap());
    assert!(
        second.log().contains(&pid) && second.log().contains("stop the other one first"),
        "{}",
        second.log()
    );
    assert!(first.status()["watch"]["state"] == "watching");
    assert_eq!(first.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_directory_that_cannot_be_made_is_a_mistake() {
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::good().with("cri-endpoint", cri.endpoint());
    fs::write(flags.path("state"), "no directory").unwrap();
    let mut agent = Agent::start(flags);
    assert_eq!(agent.ended().await, Some(78));
    let log = agent.log();
    let complaint = log
        .lines()
        .find(|line| line.starts_with("pod-teardown: "))
        .expect("a complaint");
    assert!(
        complaint.contains("--state-dir") && complaint.contains("may write to"),
        "{complaint}"
    );
}
