//! The agent as a separate process.

use std::{
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use super::Stage;
use crate::api::Access;

/// Limit from its start until it watches; it takes less than a second, and many stages start at once on a busy machine.
const START: Duration = Duration::from_secs(120);

/// Limit until it exits, by itself or after SIGTERM.
const END: Duration = Duration::from_secs(60);

/// As in the unit.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Flags of an agent of this stage with its state in `dir`.
fn flags(stage: &Stage, dir: &Path) -> Result<Vec<OsString>> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let kubeconfig = dir.join("kubeconfig");
    fs::write(&kubeconfig, stage.api.node_kubeconfig(&stage.node))
        .with_context(|| format!("write {}", kubeconfig.display()))?;
    let dirs = stage.starter.dirs();
    let flags = [
        ("--kubeconfig", kubeconfig.into()),
        ("--node-name", OsString::from(&stage.node)),
        ("--cri-endpoint", stage.containerd.endpoint().into()),
        ("--kubelet-root", dirs.kubelet_root.clone().into()),
        ("--kubelet-config", dirs.config_file().into()),
        // Tests of standby set it explicitly.
        ("--mode", "always".into()),
    ];
    Ok(flags
        .into_iter()
        .flat_map(|(name, value)| [name.into(), value])
        .collect())
}

/// The same for an agent in standby for a kubelet, with another runtime endpoint.
fn auto_flags(stage: &Stage, dir: &Path, endpoint: &str) -> Result<Vec<OsString>> {
    let mut flags = flags(stage, dir)?;
    for (flag, value) in [("--cri-endpoint", endpoint), ("--mode", "auto")] {
        set(&mut flags, flag, value.into())?;
    }
    Ok(flags)
}

fn set(flags: &mut [OsString], flag: &str, value: OsString) -> Result<()> {
    let at = flags.iter().position(|given| given == flag).context("a flag")?;
    flags[at + 1] = value;
    Ok(())
}

/// A running agent; killed when dropped.
pub struct AgentProcess {
    child: Child,
    binary: PathBuf,
    socket: PathBuf,
    log: PathBuf,
}

// === impl AgentProcess ===

impl AgentProcess {
    /// Starts it and waits until it has listed its pods.
    pub(super) async fn start(stage: &Stage, binary: &Path, more: &[&str]) -> Result<Self> {
        let agent = Self::spawn(stage, binary, more)?;
        agent.wait_until_watching().await?;
        Ok(agent)
    }

    /// Starts it without waiting.
    pub fn spawn(stage: &Stage, binary: &Path, more: &[&str]) -> Result<Self> {
        Self::spawn_with(stage, binary, |command| {
            command.args(more);
        })
    }

    /// Starts one with other credentials, and waits until it watches.
    pub async fn start_as(stage: &Stage, binary: &Path, kubeconfig: &Path) -> Result<Self> {
        let dir = stage.containerd.workspace().dir().join("agent");
        let mut flags = flags(stage, &dir)?;
        set(&mut flags, "--kubeconfig", kubeconfig.into())?;
        Self::start_with(binary, &dir, &flags).await
    }

    /// As [`Self::spawn`], with the socket of checkpoints, for an agent that was built with them.
    pub fn spawn_checked(stage: &Stage, binary: &Path, more: &[&str], checkpoints: &Path) -> Result<Self> {
        Self::spawn_with(stage, binary, |command| {
            command.args(more).env("POD_TEARDOWN_CHECKPOINTS", checkpoints);
        })
    }

    /// Starts an agent in standby for a kubelet, with another runtime endpoint, and waits until it watches.
    pub async fn start_beside(stage: &Stage, binary: &Path, endpoint: &str, more: &[&str]) -> Result<Self> {
        let dir = stage.containerd.workspace().dir().join("agent");
        let mut flags = auto_flags(stage, &dir, endpoint)?;
        flags.extend(more.iter().map(OsString::from));
        Self::start_with(binary, &dir, &flags).await
    }

    /// As [`Self::start_beside`], for an agent that only observes.
    pub async fn start_observing(stage: &Stage, binary: &Path, endpoint: &str) -> Result<Self> {
        let dir = stage.containerd.workspace().dir().join("agent");
        let mut flags = auto_flags(stage, &dir, endpoint)?;
        set(&mut flags, "--mode", "observe".into())?;
        Self::start_with(binary, &dir, &flags).await
    }

    /// Starts an agent as its unit does, with this notify socket: in standby for a kubelet, with default settings. Waits
    /// until it watches.
    pub async fn start_service(stage: &Stage, binary: &Path, manager: &Path) -> Result<Self> {
        let endpoint = stage.containerd.endpoint();
        let dir = stage.containerd.workspace().dir().join("agent");
        let flags = auto_flags(stage, &dir, &endpoint)?;
        let agent = Self::launch(binary, &dir, |command| {
            let watchdog = WATCHDOG.as_micros().to_string();
            command.args(&flags);
            command.env("NOTIFY_SOCKET", manager).env("WATCHDOG_USEC", watchdog);
        })?;
        agent.wait_until_watching().await?;
        Ok(agent)
    }

    async fn start_with(binary: &Path, dir: &Path, flags: &[OsString]) -> Result<Self> {
        let agent = Self::launch(binary, dir, |command| {
            command.args(flags);
        })?;
        agent.wait_until_watching().await?;
        Ok(agent)
    }

    fn spawn_with(stage: &Stage, binary: &Path, more: impl FnOnce(&mut Command)) -> Result<Self> {
        let dir = stage.containerd.workspace().dir().join("agent");
        let flags = flags(stage, &dir)?;
        Self::launch(binary, &dir, |command| {
            command.args(&flags);
            more(command);
        })
    }

    /// Output and exit code of `check`, with the flags of this stage's agent.
    pub async fn check(stage: &Stage, binary: &Path) -> Result<(String, Option<i32>)> {
        let dir = stage.containerd.workspace().dir().join("check");
        let output = Command::new(binary)
            .arg("check")
            .args(flags(stage, &dir)?)
            .arg("--state-dir")
            .arg(dir.join("state"))
            .arg("--socket")
            .arg(dir.join("admin.sock"))
            .output()
            .await
            .with_context(|| format!("run {}", binary.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok((text, output.status.code()))
    }

    /// Starts it without a stage, only as a collector with `gc`, and without waiting.
    pub fn spawn_collector(binary: &Path, dir: &Path, access: &Access, gc: &str) -> Result<Self> {
        let kubeconfig = dir.join("kubeconfig");
        fs::write(&kubeconfig, access.kubeconfig()).with_context(|| format!("write {}", kubeconfig.display()))?;
        Self::launch(binary, dir, |command| {
            command
                .args(["--mode", "never", "--gc", gc, "--gc-kubeconfig"])
                .arg(&kubeconfig);
        })
    }

    /// Starts it with any arguments; its state, socket and log are in `dir`.
    fn launch(binary: &Path, dir: &Path, arguments: impl FnOnce(&mut Command)) -> Result<Self> {
        let (socket, log) = (dir.join("admin.sock"), dir.join("log"));
        let output = File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new(binary);
        command.arg("run");
        arguments(&mut command);
        let child = command
            .arg("--state-dir")
            .arg(dir.join("state"))
            .arg("--socket")
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", binary.display()))?;
        Ok(Self {
            child,
            binary: binary.to_owned(),
            socket,
            log,
        })
    }

    async fn wait_until_watching(&self) -> Result<()> {
        let late = Instant::now() + START;
        loop {
            if self
                .status()
                .await
                .is_ok_and(|status| status["watch"]["state"] == "watching")
            {
                return Ok(());
            }
            if Instant::now() > late {
                bail!(
                    "the agent does not watch after {START:?}; its log ends:\n{}",
                    self.log_tail()
                );
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

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

    /// Its exit status if it has exited by itself.
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

    /// Stops it as a service manager would: SIGTERM; returns its exit code.
    pub async fn stop(self) -> Result<Option<i32>> {
        self.send_sigterm()?;
        self.ended().await
    }

    /// Sends SIGTERM.
    pub fn send_sigterm(&self) -> Result<()> {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            kill(Pid::from_raw(pid), Signal::SIGTERM).context("stop the agent")?;
        }
        Ok(())
    }
}
