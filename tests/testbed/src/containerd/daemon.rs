//! The daemon's process.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_cri::v1::StatusRequest;
use tokio::time::{Instant, sleep};

use super::binary::Binary;
use super::{Cri, Paths};

/// It takes a quarter of a second; the rest is for a loaded machine.
const START_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A running containerd; killed with SIGKILL and reaped when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
}

// === impl Daemon ===

impl Daemon {
    /// Starts the process; it serves when [`Self::wait_until_ready`] has returned.
    pub fn spawn(binary: &Binary, paths: &Paths, env: &[(&str, &str)]) -> Result<Self> {
        use std::os::unix::process::CommandExt;
        let log = File::options().create(true).append(true).open(&paths.log);
        let log = log.with_context(|| format!("open {}", paths.log.display()))?;
        let stdout = log
            .try_clone()
            .with_context(|| format!("duplicate {}", paths.log.display()))?;
        let child = binary
            .command("containerd")
            .arg("--config")
            .arg(&paths.config)
            .envs(env.iter().copied())
            .stdout(stdout)
            .stderr(Stdio::from(log))
            // A Ctrl-C on the terminal is for the owner.
            .process_group(0)
            .spawn()
            .context("start containerd")?;
        Ok(Self { child })
    }

    /// Pid of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the runtime and its network report ready, or the process has ended.
    pub async fn wait_until_ready(&mut self, mut cri: Cri, log: &Path) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let problem = match cri.status(StatusRequest::default()).await {
                Ok(answer) => {
                    let conditions = answer.into_inner().status.unwrap_or_default().conditions;
                    // containerd 2 has another condition, which warns of machines with v1 cgroups.
                    let required = |kind: &str| matches!(kind, "RuntimeReady" | "NetworkReady");
                    match conditions
                        .into_iter()
                        .find(|condition| required(&condition.r#type) && !condition.status)
                    {
                        None => return Ok(()),
                        Some(condition) => format!("{} is false: {}", condition.r#type, condition.message),
                    }
                }
                Err(status) => status.to_string(),
            };
            if let Some(exit) = self.child.try_wait().context("wait for containerd")? {
                bail!(
                    "containerd (pid {}) ended with {exit} while it started; end of its log:\n{}",
                    self.child.id(),
                    last_lines(log)
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "containerd is not ready after {START_LIMIT:?}: {problem}; end of its log:\n{}",
                    last_lines(log)
                );
            }
            sleep(POLL).await;
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail only if it has exited and was reaped already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn last_lines(log: &Path) -> String {
    let text = match fs::read(log) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) => format!("{}: {error}", log.display()),
    };
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}
