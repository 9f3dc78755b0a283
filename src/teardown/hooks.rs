//! preStop hooks: run out of the container's own grace, never run again once ended, never a reason to stop short.

use std::time::Duration;

use thiserror::Error;
use tokio::time::Instant;

use crate::{
    model::pod::{ContainerView, Hook},
    node::{
        cri::Cri,
        effects::{Effects, EffectsBlocked},
        grpc::GrpcError,
    },
    teardown::http_hook::{self, HttpHookError, Target},
};

/// Why a hook counts as failed. What it printed stays out of events: it may hold secrets.
#[derive(Debug, Error)]
pub enum HookError {
    /// The command ended with another code than 0.
    #[error("exec ended with exit code {0}")]
    ExitCode(i32),
    /// The runtime could not run it.
    #[error(transparent)]
    Runtime(#[from] GrpcError),
    /// No answer to the request.
    #[error(transparent)]
    Http(HttpHookError),
    /// The gate was shut before it had ended.
    #[error(transparent)]
    Blocked(EffectsBlocked),
    /// The grace period ended before the hook did.
    #[error("still running when the grace period ended")]
    Overrun,
    /// The grace period had ended before the hook could begin.
    #[error("left out: no time was left of the grace period")]
    NoTime,
    /// The handler names nothing that can be run.
    #[error("the handler is empty or of an unknown kind")]
    Invalid,
}

/// Where a hook finds its container.
#[derive(Debug, Clone)]
pub struct HookPlace {
    /// Container to run a command in.
    pub container_id: String,
    /// Address of the pod, or of the node for pods on its network.
    pub address: Option<String>,
}

// === impl HookError ===

impl From<HttpHookError> for HookError {
    fn from(error: HttpHookError) -> Self {
        match error {
            HttpHookError::Blocked(held) => Self::Blocked(held),
            other => Self::Http(other),
        }
    }
}

/// Runs one hook, which `effects` have allowed, to its end, or until they allow nothing any more. The caller bounds it by the deadline; `deadline` tells the
/// runtime when to give up.
pub async fn run(
    cri: &Cri,
    effects: &Effects,
    container: &ContainerView,
    hook: &Hook,
    place: &HookPlace,
    deadline: Instant,
) -> Result<(), HookError> {
    match hook {
        Hook::Exec(command) => {
            let left = deadline.saturating_duration_since(Instant::now());
            let outcome = cri.exec_sync(&place.container_id, command, left).await?;
            match outcome.exit_code {
                0 => Ok(()),
                code => Err(HookError::ExitCode(code)),
            }
        }
        Hook::HttpGet(get) => {
            let target = Target::of(get, container, place.address.as_deref())?;
            Ok(http_hook::get(get, &target, effects).await?)
        }
        Hook::Sleep(seconds) => {
            // An absurd length would overflow the clock; no grace period is that long.
            let wait = tokio::time::sleep(Duration::from_secs((*seconds).min(u64::from(u32::MAX))));
            effects.run_until_blocked(wait).await.map_err(HookError::Blocked)
        }
        Hook::Invalid => Err(HookError::Invalid),
    }
}
