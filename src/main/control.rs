//! The verbs that change what the agent does.

use std::{
    io::{self, IsTerminal as _},
    path::Path,
    time::Duration,
};

use anyhow::Context as _;
use pod_teardown::{
    cli::{ApprovalRequest, StopArgs, UsageError},
    handover::guard::holds::SafetyHold,
    ops::{holds, stop},
};

use crate::print::{print, print_error};

/// Approves a safety hold. Without `--yes` a user at a terminal is asked.
pub async fn approve(request: ApprovalRequest, socket: &Path) -> anyhow::Result<()> {
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    let needs_answer = !request.yes;
    if needs_answer && !can_ask {
        let item = &request.item;
        let why = format!("there is no terminal for a question; repeat the command with --yes to approve {item}");
        return Err(UsageError(why).into());
    }
    let confirm = |hold: &SafetyHold| holds::ask(hold, io::stdin().lock(), io::stderr().lock());
    let approved = holds::approve(socket, request, needs_answer.then_some(confirm)).await?;
    print(&holds::approved(&approved.context("nothing is approved")?))
}

/// Stops a pod and waits. Progress goes to standard error, the result to standard output.
pub async fn stop_pod(arguments: StopArgs) -> anyhow::Result<()> {
    let pod = arguments.pod.id()?;
    let wait = arguments.wait.then_some(arguments.timeout.unwrap_or(Duration::MAX));
    print(&stop::stop(&arguments.socket.socket, &pod, &arguments.request, wait, print_error).await?)
}
