//! The verbs that change what the agent does.

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
};

use pod_teardown::{
    cli::{ApproveArgs, PauseArgs, StopFlags},
    handover::guard::holds::SafetyHold,
    node::systemd::Systemd,
    ops::{
        admin::{
            pause::{PAUSE, PauseRequest},
            stop::StopRequest,
        },
        approve,
        enable::{self, Mode},
        holds, pause,
        stop::{self, Wait},
    },
};

use crate::{
    print::{CONFIGURATION, USAGE, failed, print, print_error},
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
    let approval = approve::Approval {
        item,
        digest,
        reason,
        yes,
    };
    let confirm = |hold: &SafetyHold| approve::ask(hold, io::stdin().lock(), io::stderr().lock());
    match approve::approve(&socket.socket, approval, confirm).await {
        Ok(Some(approved)) => print(&holds::approved(&approved), 0),
        Ok(None) => failed(1, "nothing is approved"),
        Err(why) => failed(1, &why),
    }
}

/// Lets the installed service act or observe.
pub async fn set_mode(mode: Mode, now: bool) -> ExitCode {
    match enable::set(&enable::Files::of_host(), &Systemd::of_host(), mode, now).await {
        Ok(done) => print(&done, 0),
        Err(error) if error.is_configuration() => failed(CONFIGURATION, &error.to_string()),
        Err(error) => failed(1, &error.to_string()),
    }
}

/// Stops a pod and waits. Progress goes to standard error, the result to standard output.
pub async fn stop_pod(flags: &StopFlags, verb: &str, reason: Option<String>, message: Option<String>) -> ExitCode {
    let request = StopRequest {
        uid: flags.uid.clone(),
        grace_period_seconds: flags.grace_period,
        reason,
        message,
    };
    let pod = match flags.pod.id() {
        Ok(pod) => pod,
        Err(why) => return failed(USAGE, &why),
    };
    let wait = match (flags.wait, flags.timeout) {
        (false, _) => Wait::No,
        (true, Some(limit)) => Wait::AtMost(limit),
        (true, None) => Wait::Unlimited,
    };
    match stop::stop(&flags.socket.socket, &pod, verb, &request, wait, print_error).await {
        Ok(result) => print(&stop::text(&result), 0),
        Err(error) => failed(1, &error.to_string()),
    }
}
