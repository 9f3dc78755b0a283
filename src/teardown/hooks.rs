//! preStop hooks. They run within the grace period, never again once finished, and never prevent the stop.

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

/// Why a hook failed. Its output may contain secrets, and is not part of events.
#[derive(Debug, Error)]
pub enum HookError {
    /// The command exited with another code than 0.
    #[error("exec exited with code {0}")]
    ExitCode(i32),
    /// The runtime could not run it.
    #[error(transparent)]
    Runtime(#[from] GrpcError),
    /// The request was not answered.
    #[error(transparent)]
    Http(HttpHookError),
    /// The gate closed before it finished.
    #[error(transparent)]
    Blocked(EffectsBlocked),
    /// The grace period expired before the hook finished.
    #[error("still running when the grace period expired")]
    Overrun,
    /// The grace period expired before the hook started.
    #[error("skipped: the grace period has no time left")]
    NoTime,
    /// The handler has nothing to run.
    #[error("the handler is empty or of an unknown kind")]
    Invalid,
}

/// The container of a hook.
#[derive(Debug, Clone)]
pub struct HookTarget {
    /// Container that a command runs in.
    pub container_id: String,
    /// Pod IP, or the node's IP for pods with host network.
    pub address: Option<String>,
}

// === impl HookError ===

impl From<HttpHookError> for HookError {
    fn from(error: HttpHookError) -> Self {
        match error {
            HttpHookError::Blocked(blocked) => Self::Blocked(blocked),
            other => Self::Http(other),
        }
    }
}

/// Runs one hook that `effects` have allowed, until it finishes or the gate closes. The caller limits it to the deadline.
/// `deadline` is the timeout for the runtime.
pub async fn run(
    cri: &Cri,
    effects: &Effects,
    container: &ContainerView,
    hook: Hook,
    target: &HookTarget,
    deadline: Instant,
) -> Result<(), HookError> {
    match hook {
        Hook::Exec(command) => {
            let left = deadline.saturating_duration_since(Instant::now());
            let outcome = cri.exec_sync(&target.container_id, command, left).await?;
            match outcome.exit_code {
                0 => Ok(()),
                code => Err(HookError::ExitCode(code)),
            }
        }
        Hook::HttpGet(get) => {
            let address = Target::resolve(&get, container, target.address.as_deref())?;
            Ok(http_hook::get(&get, &address, effects).await?)
        }
        Hook::Sleep(seconds) => {
            // Extreme values overflow the clock.
            let wait = tokio::time::sleep(Duration::from_secs(seconds.min(u64::from(u32::MAX))));
            effects.run_until_blocked(wait).await.map_err(HookError::Blocked)
        }
        Hook::Invalid => Err(HookError::Invalid),
        // It was not read before the deadline.
        Hook::Large => Err(HookError::NoTime),
    }
}
