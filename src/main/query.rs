//! Queries the agent, once or again and again, and prints its answers.

use std::{
    io::{self, IsTerminal as _, Write as _},
    pin::pin,
    process::ExitCode,
    time::Duration,
};

use pod_teardown::{
    cli::{OutputFormat, SocketFlag},
    ops::{
        client::{self, ClientError},
        output::Output,
        reader,
    },
};
use serde::{Serialize, de::DeserializeOwned};

use crate::print::{failed, formatted, print, print_error, print_formatted, write_line};

/// How often `--watch` queries the agent.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// Moves the cursor to the upper left, and clears the screen.
pub const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";

/// The output format of a query, with its text form.
pub fn with_text<F>(output: OutputFormat, text: F) -> Output<F> {
    match output {
        OutputFormat::Json => Output::Json,
        OutputFormat::Yaml => Output::Yaml,
        OutputFormat::Table | OutputFormat::Wide => Output::Text(text),
    }
}

/// Queries the agent, and prints the answer.
pub async fn query<T: DeserializeOwned>(
    socket: &SocketFlag,
    path: &str,
    output: Output<impl Fn(&T) -> String>,
) -> ExitCode {
    let answer = client::get_raw(&socket.socket, path).await;
    match answer.and_then(|answer| answer.format(output.as_ref())) {
        Ok(text) => print_formatted(&output, &text, 0),
        Err(error) => failed(1, &error.to_string()),
    }
}

/// Runs a command that lasts, until the reader of its output exits. Otherwise it would notice that only at its next change.
pub async fn while_read(command: impl Future<Output = ExitCode>) -> ExitCode {
    tokio::select! {
        code = command => code,
        () = reader::wait_until_gone() => ExitCode::SUCCESS,
    }
}

/// Queries the agent until Ctrl-C or the last answer, and prints each change. An agent that does not answer at first is an error;
/// later it is waited for. An object that it no longer knows is gone.
pub async fn watch_answer<T: DeserializeOwned>(
    socket: &SocketFlag,
    path: &str,
    output: Output<impl Fn(&T) -> String>,
    is_last: impl Fn(&T) -> bool,
) -> ExitCode {
    let redraws = io::stdout().is_terminal() && output.is_text();
    let mut shown = None;
    let mut interrupted = pin!(tokio::signal::ctrl_c());
    loop {
        let answer = client::get_raw(&socket.socket, path).await;
        let is_gone = matches!(&answer, Err(ClientError::Unknown(_)));
        let is_end = is_gone
            || answer
                .as_ref()
                .is_ok_and(|answer| answer.parse().is_ok_and(|it| is_last(&it)));
        let (text, is_answer) = match answer.and_then(|answer| answer.format(output.as_ref())) {
            Ok(text) => (text, true),
            Err(error) if shown.is_none() => return failed(1, &error.to_string()),
            Err(error) => (error.to_string(), false),
        };
        if shown.as_ref() != Some(&text) {
            if redraws {
                // A failure is reported by the next write.
                write!(io::stdout(), "{CLEAR_SCREEN}").ok();
            }
            if is_answer || output.is_text() {
                match write_line(&formatted(&output, &text)) {
                    // The reader has exited.
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
                    Err(error) => return failed(1, &format!("standard output: {error}")),
                    Ok(()) => {}
                }
            } else if !is_gone {
                // A program reads only answers.
                print_error(&text);
            }
            shown = Some(text);
        }
        if is_end {
            return ExitCode::SUCCESS;
        }
        tokio::select! {
            _ = &mut interrupted => return ExitCode::SUCCESS,
            () = tokio::time::sleep(WATCH_INTERVAL) => {}
        }
    }
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
