//! `version`: this program, the agent and its runtime.

use std::path::Path;

use super::{admin::STATUS, client, status::StatusReport};

/// Queries the agent, and formats the versions. Without an agent, its line has the error.
pub async fn text(socket: &Path) -> String {
    let client = env!("CARGO_PKG_VERSION");
    match client::get::<StatusReport>(socket, STATUS).await {
        Ok(status) => {
            let runtime = status.runtime.version.as_deref().unwrap_or("not reached yet");
            format!(
                "Client     {client}\nAgent      {}\nRuntime    {runtime}\n",
                status.version
            )
        }
        Err(error) => format!("Client     {client}\nAgent      {error}\n"),
    }
}
