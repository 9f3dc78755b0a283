//! Starts a pod's termination: by its deletion, or by `pod-teardown stop --failed`.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result};
use tokio::process::{Child, Command};

/// What starts a teardown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    Deleted,
    /// The agent evicts it. It is deleted once it has failed and nothing of it runs.
    Evicted,
}

/// `status.reason` of an evicted pod.
pub const REASON: &str = "Evicted";

/// An eviction by `pod-teardown stop --failed`. The command is killed on drop.
pub struct Eviction {
    command: Child,
    said: PathBuf,
}

impl Eviction {
    /// Requests the eviction; `dir` is the agent's directory.
    pub fn ask(agent: &Path, dir: &Path, pod: &str) -> Result<Self> {
        let said = dir.join("stop.log");
        let output = File::create(&said).with_context(|| format!("create {}", said.display()))?;
        let command = Command::new(agent)
            .args([
                "stop",
                pod,
                "--failed",
                "--reason",
                REASON,
                "--message",
                "no room",
                "--socket",
            ])
            .arg(dir.join("admin.sock"))
            .stdout(Stdio::null())
            .stderr(output)
            .kill_on_drop(true)
            .spawn();
        let command = command.context("start pod-teardown stop --failed")?;
        Ok(Self { command, said })
    }

    /// Whether the agent has accepted it. From then on it must complete it, even after a crash.
    pub fn is_granted(&self) -> bool {
        self.logged().contains("is terminating, grace")
    }

    /// Output of the command so far.
    pub fn logged(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Whether the command has failed, so that it has to be repeated.
    pub fn is_refused(&mut self) -> Result<bool> {
        let ended = self
            .command
            .try_wait()
            .context("look after pod-teardown stop --failed")?;
        Ok(ended.is_some() && !self.is_granted())
    }
}
