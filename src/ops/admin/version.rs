//! The versions that the agent knows.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{respond::json_answer, state::Admin};

/// Path of the query.
pub const VERSION: &str = "/v1/version";
/// How long the API server has to answer; less than the timeout of the client.
const API_TIMEOUT: Duration = Duration::from_secs(3);

/// Versions that the agent knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AgentVersions {
    /// The agent's version.
    pub agent: String,
    /// Name and version of the container runtime; `None` before its first answer.
    pub runtime: Option<String>,
    /// Version of the API server; `None` if it does not answer.
    pub api_server: Option<String>,
}

/// Answers with the versions. The API server is asked for its own, which changes nothing.
pub(super) async fn answer(admin: &Admin) -> Response<Full<Bytes>> {
    let mut versions = AgentVersions {
        agent: env!("CARGO_PKG_VERSION").to_owned(),
        ..AgentVersions::default()
    };
    if let Some(pods) = &admin.pods {
        versions.runtime = pods.runtime.borrow().version.clone();
        if let Some(api) = pods.api.get() {
            let version = timeout(API_TIMEOUT, api.version()).await;
            versions.api_server = version.ok().and_then(Result::ok);
        }
    }
    json_answer(&versions)
}
