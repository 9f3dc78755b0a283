//! The verbs that change what the agent does.

use std::{
    io::{self, IsTerminal as _},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use pod_teardown::{
    cli::{ApprovalRequest, StopArgs},
    handover::guard::holds::SafetyHold,
    ops::{holds, stop},
};

use crate::print::{USAGE, failed, print, print_error};

/// Approves a safety hold. Without `--yes` a user at a terminal is asked.
pub async fn approve(request: ApprovalRequest, socket: &Path) -> ExitCode {
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    let needs_answer = !request.yes;
    if needs_answer && !can_ask {
        let item = &request.item;
        let why = format!("there is no terminal for a question; repeat the command with --yes to approve {item}");
        return failed(USAGE, &why);
    }
    let confirm = |hold: &SafetyHold| holds::ask(hold, io::stdin().lock(), io::stderr().lock());
    match holds::approve(socket, request, needs_answer.then_some(confirm)).await {
        Ok(Some(approved)) => print(&holds::approved(&approved), 0),
        Ok(None) => failed(1, "nothing is approved"),
        Err(error) => failed(1, &error.to_string()),
    }
}

/// Stops a pod and waits. Progress goes to standard error, the result to standard output.
///
/// # Errors
/// A mistake in the name of the pod.
pub async fn stop_pod(arguments: StopArgs) -> Result<ExitCode, String> {
    let pod = arguments.pod.id()?;
    let wait = arguments.wait.then_some(arguments.timeout.unwrap_or(Duration::MAX));
    let stopped = stop::stop(&arguments.socket.socket, &pod, &arguments.request, wait, print_error).await;
    Ok(match stopped {
        Ok(result) => print(&result, 0),
        Err(error) => failed(1, &error.to_string()),
    })
}
