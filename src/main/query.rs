//! Sends requests to the agent, and prints its answers.

use std::process::ExitCode;

use pod_teardown::{
    cli::{OutputFormat, QueryFlags, SocketFlag},
    ops::client,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::print::{failed, print, print_text};

/// Queries the agent, and prints the answer. `text` also gets whether `-o wide` is given.
pub async fn query<T: DeserializeOwned>(
    QueryFlags { socket, output }: &QueryFlags,
    path: &str,
    text: impl Fn(&T, bool) -> String,
) -> ExitCode {
    let answer = client::get_raw(&socket.socket, path).await;
    let printed = answer.and_then(|answer| match output {
        OutputFormat::Json => answer.json().map(|json| print(&json, 0)),
        OutputFormat::Table | OutputFormat::Wide => {
            let answer = answer.parse()?;
            Ok(print_text(&text(&answer, *output == OutputFormat::Wide), 0))
        }
    });
    printed.unwrap_or_else(|error| failed(1, &error.to_string()))
}

/// Sends a command to the agent, and prints the answer.
pub async fn post<T: DeserializeOwned>(
    socket: &SocketFlag,
    path: &str,
    request: &impl Serialize,
    text: impl FnOnce(&T) -> String,
) -> ExitCode {
    match client::post::<T>(&socket.socket, path, request).await {
        Ok(answer) => print(&text(&answer), 0),
        Err(error) => failed(1, &error.to_string()),
    }
}
