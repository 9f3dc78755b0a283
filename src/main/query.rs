//! Sends requests to the agent, and prints its answers.

use std::time::Duration;

use pod_teardown::{
    cli::{OutputFormat, QueryFlags, SocketFlag},
    ops::client,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::print::{print, print_text};

/// Queries the agent, and prints the answer. `text` also gets whether `-o wide` is given.
pub async fn query<T: DeserializeOwned>(
    QueryFlags { socket, output }: &QueryFlags,
    path: &str,
    text: impl Fn(&T, bool) -> String,
) -> anyhow::Result<()> {
    let answer = client::get_raw(&socket.socket, path, Duration::ZERO).await?;
    match output {
        OutputFormat::Json => print(&answer.json()?),
        OutputFormat::Table | OutputFormat::Wide => print_text(&text(&answer.parse()?, *output == OutputFormat::Wide)),
    }
}

/// Sends a command to the agent, and prints the answer.
pub async fn post<T: DeserializeOwned>(
    socket: &SocketFlag,
    path: &str,
    request: &impl Serialize,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    print(&text(&client::post(&socket.socket, path, request).await?))
}
