//! Monitors whether the container runtime answers, so that its failure is reported before a pod needs it.

use std::time::Duration;

use backon::BackoffBuilder as _;
use k8s_cri::v1::VersionResponse;
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::sleep};

use super::{
    cri::{Cri, CriEndpoint},
    grpc::GrpcError,
};
use crate::clock::{pauses, rounded};

/// Pauses while it does not answer.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Interval while it answers.
const INTERVAL: Duration = Duration::from_secs(10);

/// State of the container runtime in `status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeReport {
    /// Its last known name and version; `None` before its first answer.
    pub version: Option<String>,
    /// Why it does not answer, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Waits for the runtime without a limit. An error means that another program listens on its socket.
pub async fn wait_until_ready(
    cri: &Cri,
    endpoint: &CriEndpoint,
    report: &watch::Sender<RuntimeReport>,
) -> Result<VersionResponse, GrpcError> {
    let mut pauses = pauses(FIRST_PAUSE, LONGEST_PAUSE).build();
    loop {
        match cri.version().await {
            Ok(version) => {
                record_answer(report, &version);
                return Ok(version);
            }
            Err(error) if error.is_not_a_runtime() => return Err(error),
            Err(error) => {
                let pause = pauses.next().unwrap_or(LONGEST_PAUSE);
                tracing::warn!(%endpoint, %error, retry_in = ?rounded(pause), "Container runtime is unreachable; waiting for it");
                report.send_modify(|report| report.error = Some(error.to_string()));
                sleep(pause).await;
            }
        }
    }
}

/// Polls until the agent stops.
pub async fn monitor(cri: Cri, endpoint: CriEndpoint, report: watch::Sender<RuntimeReport>) {
    loop {
        sleep(INTERVAL).await;
        match cri.version().await {
            Ok(version) => {
                if report.borrow().error.is_some() {
                    tracing::info!(%endpoint, version = version.runtime_version, "Container runtime answers again");
                }
                record_answer(&report, &version);
            }
            Err(error) => {
                if report.borrow().error.is_none() {
                    tracing::warn!(%endpoint, %error, "Container runtime does not answer; terminating pods wait for it");
                }
                report.send_modify(|report| report.error = Some(error.to_string()));
            }
        }
    }
}

fn record_answer(report: &watch::Sender<RuntimeReport>, version: &VersionResponse) {
    report.send_replace(RuntimeReport {
        version: Some(format!("{} {}", version.runtime_name, version.runtime_version)),
        error: None,
    });
}
