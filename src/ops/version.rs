//! `version`: the versions of the client, the agent and what they work with.

use std::path::Path;

use nix::sys::utsname::uname;
use serde::{Deserialize, Serialize};

use super::{
    admin::version::{AgentVersions, VERSION},
    client,
};

/// All versions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Versions {
    /// Version of this program.
    pub client: String,
    /// The running kernel.
    pub kernel: Option<String>,
    /// The agent's version; `None` if no agent answers.
    pub agent: Option<String>,
    /// Name and version of the container runtime, as the agent knows it.
    pub runtime: Option<String>,
    /// Version of the API server, as the agent knows it.
    pub api_server: Option<String>,
    /// Why the agent does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Collects all versions. Without an agent, those that it knows are missing.
pub async fn collect(socket: &Path) -> Versions {
    let known = Versions {
        client: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: kernel(),
        ..Versions::default()
    };
    match client::get::<AgentVersions>(socket, VERSION).await {
        Ok(AgentVersions {
            agent,
            runtime,
            api_server,
        }) => Versions {
            agent: Some(agent),
            runtime,
            api_server,
            ..known
        },
        Err(error) => Versions {
            error: Some(error.to_string()),
            ..known
        },
    }
}

fn kernel() -> Option<String> {
    let uname = uname().ok()?;
    let part = |part: &std::ffi::OsStr| part.to_string_lossy().into_owned();
    Some(format!("{} {}", part(uname.sysname()), part(uname.release())))
}

/// Formats the versions.
pub fn text(versions: &Versions) -> String {
    let Versions {
        client,
        kernel,
        agent,
        runtime,
        api_server,
        error,
    } = versions;
    let or = |version: &Option<String>, missing: &str| version.clone().unwrap_or_else(|| missing.to_owned());
    // Only the agent knows them.
    let missing = match error {
        Some(_) => "unknown",
        None => "unknown: it has not answered",
    };
    [
        ("Client", client.clone()),
        ("Agent", or(agent, error.as_deref().unwrap_or("unknown"))),
        ("Kernel", or(kernel, "unknown")),
        ("Runtime", or(runtime, missing)),
        ("API server", or(api_server, missing)),
    ]
    .map(|(label, version)| format!("{label:<10} {version}\n"))
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_a_line_and_the_error_is_shown_once() {
        let mut versions = Versions {
            client: "1.2.3".to_owned(),
            kernel: Some("Linux 6.1".to_owned()),
            error: Some("no agent answers".to_owned()),
            ..Versions::default()
        };
        let without = text(&versions);
        assert_eq!(
            without,
            "Client     1.2.3\nAgent      no agent answers\nKernel     Linux 6.1\nRuntime    unknown\nAPI server unknown\n"
        );
        versions.error = None;
        versions.agent = Some("1.2.4".to_owned());
        assert!(text(&versions).contains("Agent      1.2.4\nKernel     Linux 6.1\nRuntime    unknown"));
    }
}
