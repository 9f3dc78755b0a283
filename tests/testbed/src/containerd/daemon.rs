//! The daemon's process.

use std::{os::unix::process::CommandExt as _, time::Duration};

use anyhow::{Result, ensure};
use k8s_cri::v1::StatusRequest;

use super::{Cri, Paths, binary::Binary};
use crate::control_plane::process::Process;

/// It takes a quarter of a second; the rest is for a loaded machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Starts the process; it serves when [`wait_until_ready`] has returned.
pub fn spawn(binary: &Binary, paths: &Paths, env: &[(&str, &str)]) -> Result<Process> {
    let mut command = binary.command("containerd");
    command.arg("--config").arg(&paths.config).envs(env.iter().copied());
    // A Ctrl-C on the terminal is for the owner.
    command.process_group(0);
    Process::start(command, &paths.log)
}

/// Waits until the runtime and its network report ready.
pub async fn wait_until_ready(daemon: &mut Process, cri: Cri) -> Result<()> {
    let ready = async || {
        let answer = cri.clone().status(StatusRequest::default()).await?;
        let conditions = answer.into_inner().status.unwrap_or_default().conditions;
        // containerd 2 has another condition, which warns of machines with v1 cgroups.
        let is_required = |kind: &str| matches!(kind, "RuntimeReady" | "NetworkReady");
        let missing = conditions.iter().find(|it| is_required(&it.r#type) && !it.status);
        ensure!(missing.is_none(), "{missing:?}");
        Ok(())
    };
    daemon.until_ok(START_LIMIT, ready).await
}
