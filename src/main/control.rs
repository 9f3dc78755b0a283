//! The verbs that change what the agent does.

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
};

use pod_teardown::{
    cli::{ApproveArgs, PauseArgs, StopArgs},
    handover::guard::holds::SafetyHold,
    ops::{
        admin::{
            holds::ApprovalRequest,
            pause::{self, PAUSE, PauseRequest},
            stop::StopRequest,
        },
        holds,
        stop::{self, Wait},
    },
};

use crate::{
    print::{USAGE, failed, print, print_error},
    query::post,
};

/// Pauses the agent.
pub async fn pause_agent(arguments: PauseArgs) -> ExitCode {
    let PauseArgs {
        duration,
        reason,
        socket,
    } = arguments;
    let request = PauseRequest {
        duration_seconds: duration.map(|duration| duration.as_secs()),
        reason,
    };
    post(&socket, PAUSE, &request, pause::paused).await
}

/// Approves a safety hold. Without `--yes` a user at a terminal is asked.
pub async fn approve(args: ApproveArgs) -> ExitCode {
    let ApproveArgs {
        item,
        digest,
        yes,
        reason,
        socket,
    } = args;
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !yes && !can_ask {
        let why = format!("there is no terminal for a question; repeat the command with --yes to approve {item}");
        return failed(USAGE, &why);
    }
    let request = ApprovalRequest { item, digest, reason };
    let confirm = |hold: &SafetyHold| holds::ask(hold, io::stdin().lock(), io::stderr().lock());
    match holds::approve(&socket.socket, request, (!yes).then_some(confirm)).await {
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
    let request = StopRequest {
        uid: arguments.uid,
        grace_period_seconds: arguments.grace_period,
        reason: arguments.reason,
        message: arguments.message,
    };
    let pod = arguments.pod.id()?;
    let wait = match (arguments.wait, arguments.timeout) {
        (false, _) => Wait::No,
        (true, Some(limit)) => Wait::AtMost(limit),
        (true, None) => Wait::Unlimited,
    };
    let stopped = stop::stop(&arguments.socket.socket, &pod, &request, wait, print_error).await;
    Ok(match stopped {
        Ok(result) => print(&result, 0),
        Err(error) => failed(1, &error.to_string()),
    })
}
