//! The agent as a separate process.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::Stage;
use crate::{api::Access, wait::eventually};

/// Limit from its start until it watches; it takes less than a second, and many stages start at once on a busy machine.
const START: Duration = Duration::from_secs(120);

/// Limit until it exits, by itself or after SIGTERM.
const END: Duration = Duration::from_secs(60);

/// How an agent is started. Its state, socket and log are in `dir`.
pub struct AgentCommand {
    binary: PathBuf,
    dir: PathBuf,
    flags: Vec<(String, OsString)>,
    variables: Vec<(&'static str, OsString)>,
}

impl AgentCommand {
    /// With the node's own credentials.
    pub(super) fn new(stage: &Stage, binary: &Path, dir: &str) -> Result<Self> {
        let dirs = stage.starter.dirs();
        let command = Self {
            binary: binary.to_owned(),
            dir: stage.containerd.workspace().dir().join(dir),
            flags: Vec::new(),
            variables: Vec::new(),
        };
        fs::create_dir_all(&command.dir).with_context(|| format!("create {}", command.dir.display()))?;
        let kubeconfig = command.file("kubeconfig", &stage.api.node_kubeconfig(&stage.node))?;
        // Tests of standby set the mode explicitly.
        Ok(command
            .flag("--kubeconfig", kubeconfig)
            .flag("--node-name", &stage.node)
            .flag("--cri-endpoint", stage.containerd.endpoint())
            .flag("--kubelet-root", &dirs.kubelet_root)
            .flag("--kubelet-config", dirs.config_file())
            .flag("--mode", "always"))
    }

    /// Only a collector, without a node.
    pub fn collector(binary: &Path, dir: &Path, access: &Access, gc: &str) -> Result<Self> {
        let command = Self {
            binary: binary.to_owned(),
            dir: dir.to_owned(),
            flags: Vec::new(),
            variables: Vec::new(),
        };
        let kubeconfig = command.file("kubeconfig", &access.kubeconfig())?;
        Ok(command
            .flag("--mode", "never")
            .flag("--gc", gc)
            .flag("--gc-kubeconfig", kubeconfig))
    }

    fn file(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// Sets a flag, in place of its value so far.
    #[must_use]
    pub fn flag(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.flags.retain(|(given, _)| given != name);
        self.flags.push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn variable(mut self, name: &'static str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name, value.as_ref().to_owned()));
        self
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg(verb);
        for (flag, value) in &self.flags {
            command.arg(flag).arg(value);
        }
        command.envs(self.variables.iter().cloned());
        command.arg("--state-dir").arg(self.dir.join("state"));
        command.arg("--socket").arg(self.dir.join("admin.sock"));
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Starts it without waiting.
    pub fn spawn(self) -> Result<AgentProcess> {
        let log = self.dir.join("log");
        let output = File::options().create(true).append(true).open(&log)?;
        let child = self
            .command("run")
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("start {}", self.binary.display()))?;
        Ok(AgentProcess {
            child,
            socket: self.dir.join("admin.sock"),
            binary: self.binary,
            log,
        })
    }

    /// Starts it and waits until it has listed its pods.
    pub async fn start(self) -> Result<AgentProcess> {
        let agent = self.spawn()?;
        let watches = async || {
            let status = agent.status().await;
            Ok(status
                .is_ok_and(|status| status["watch"]["state"] == "watching")
                .then_some(()))
        };
        agent.during(eventually(START, "the agent to watch", watches)).await?;
        Ok(agent)
    }

    /// Output and exit code of `check` with its flags.
    pub async fn check(&self) -> Result<(String, Option<i32>)> {
        let output = self.command("check").output().await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok((text, output.status.code()))
    }
}

/// A running agent; killed when dropped.
pub struct AgentProcess {
    child: Child,
    binary: PathBuf,
    socket: PathBuf,
    log: PathBuf,
}

impl AgentProcess {
    /// Its process id.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Output of `status -o json`.
    pub async fn status(&self) -> Result<Value> {
        let output = self.ask(&["status", "-ojson"]).await?;
        serde_json::from_str(&output).context("read the agent's status")
    }

    /// Output of `timeline`.
    pub async fn timeline(&self, namespace: &str, name: &str) -> Result<String> {
        self.ask(&["timeline", &format!("{namespace}/{name}")]).await
    }

    /// Runs a verb that asks the running agent.
    pub async fn ask(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.binary)
            .args(arguments)
            .arg("--socket")
            .arg(&self.socket)
            .output()
            .await?;
        if !output.status.success() {
            bail!(
                "{arguments:?}: {}: {}",
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Runs the work; if it fails, the error has the end of the log.
    pub async fn during<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        work.await
            .with_context(|| format!("the agent's log ends with:\n{}", self.log_tail()))
    }

    pub fn has_ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("look after the agent")
    }

    /// Waits until it exits by itself, and returns its exit code.
    pub async fn ended(mut self) -> Result<Option<i32>> {
        let status = timeout(END, self.child.wait()).await;
        Ok(status.context("the agent does not end")??.code())
    }

    /// Crashes it with SIGKILL.
    pub async fn crash(mut self) -> Result<()> {
        self.child.kill().await.context("kill the agent")
    }

    /// Stops it as a service manager would, with SIGTERM; it must exit with 0.
    pub async fn stop(self) -> Result<()> {
        self.send_sigterm()?;
        let code = self.ended().await?;
        ensure!(code == Some(0), "the agent ended with exit code {code:?}");
        Ok(())
    }

    pub fn send_sigterm(&self) -> Result<()> {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            kill(Pid::from_raw(pid), Signal::SIGTERM).context("stop the agent")?;
        }
        Ok(())
    }
}
