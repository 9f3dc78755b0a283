//! Whether the container runtime answers: asked again and again, so that its absence is told before a pod needs it.

use std::time::Duration;

use backon::BackoffBuilder as _;
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::sleep};

use super::{
    cri::{Cri, CriEndpoint, types::RuntimeVersion},
    grpc::GrpcError,
};
use crate::clock::{pauses, rounded};

/// Pauses while it does not answer.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How often one that answers is asked.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// What `status` says of the container runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeReport {
    /// Its name and version as it last gave them; `None` before it has ever answered.
    pub version: Option<String>,
    /// Why it does not answer, while it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Waits for the runtime, however long it takes. An error is that of something else that listens there.
pub async fn wait_until_ready(
    cri: &Cri,
    endpoint: &CriEndpoint,
    report: &watch::Sender<RuntimeReport>,
) -> Result<RuntimeVersion, GrpcError> {
    let mut pauses = pauses(FIRST_PAUSE, LONGEST_PAUSE).build();
    loop {
        match cri.identify(endpoint).await {
            Ok(version) => {
                answers(report, &version);
                return Ok(version);
            }
            Err(error) if error.is_not_a_runtime() => return Err(error),
            Err(error) => {
                let pause = pauses.next().unwrap_or(LONGEST_PAUSE);
                tracing::warn!(%endpoint, %error, retry_in = ?rounded(pause), "Container runtime is not to be had; waiting for it");
                report.send_modify(|report| report.error = Some(error.to_string()));
                sleep(pause).await;
            }
        }
    }
}

/// Asks until the agent stops.
pub async fn monitor(cri: Cri, endpoint: CriEndpoint, report: watch::Sender<RuntimeReport>) {
    loop {
        sleep(ASK_EVERY).await;
        match cri.version().await {
            Ok(version) => {
                if report.borrow().error.is_some() {
                    tracing::info!(%endpoint, version = version.version, "Container runtime answers again");
                }
                answers(&report, &version);
            }
            Err(error) => {
                if report.borrow().error.is_none() {
                    tracing::warn!(%endpoint, %error, "Container runtime does not answer; pods that end wait for it");
                }
                report.send_modify(|report| report.error = Some(error.to_string()));
            }
        }
    }
}

fn answers(report: &watch::Sender<RuntimeReport>, version: &RuntimeVersion) {
    report.send_replace(RuntimeReport {
        version: Some(format!("{} {}", version.name, version.version)),
        error: None,
    });
}
