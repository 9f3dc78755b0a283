//! How a pod's end is asked for: by its deletion, or of the agent by `pod-teardown evict`.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result};
use tokio::process::{Child, Command};

/// What begins a teardown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The object is deleted.
    Deleted,
    /// The agent is asked to evict it; it is deleted once it has failed and nothing of it runs.
    Evicted,
}

/// What the status gives as reason of an eviction.
pub const REASON: &str = "Evicted";

/// One request for an eviction, made by the command that people use. It ends with the value.
pub struct Eviction {
    command: Child,
    said: PathBuf,
}

// === impl Eviction ===

impl Eviction {
    /// Asks for it; `dir` is the agent's.
    pub fn ask(agent: &Path, dir: &Path, pod: &str) -> Result<Self> {
        let said = dir.join("evict.log");
        let output = File::create(&said).with_context(|| format!("create {}", said.display()))?;
        let command = Command::new(agent)
            .args(["evict", pod, "--reason", REASON, "--message", "no room", "--socket"])
            .arg(dir.join("admin.sock"))
            .stdout(Stdio::null())
            .stderr(output)
            .kill_on_drop(true)
            .spawn();
        let command = command.context("start pod-teardown evict")?;
        Ok(Self { command, said })
    }

    /// Whether the agent has said that it does it: from then on it must, whatever becomes of itself.
    pub fn is_granted(&self) -> bool {
        self.said().contains("is being ended")
    }

    /// What the command has told so far.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Whether it has come to nothing, so that whoever asked would ask again.
    pub fn is_refused(&mut self) -> Result<bool> {
        let ended = self.command.try_wait().context("look after pod-teardown evict")?;
        Ok(ended.is_some() && !self.is_granted())
    }
}
