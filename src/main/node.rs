//! The verbs `run` and `check`.

use std::{
    env, io,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{anyhow, bail};
use pod_teardown::{
    agent,
    cli::{CheckArgs, NodeFlags, unknown_variables},
    model::problem::Problem,
    node::systemd::environment_file,
    ops::{
        check::{self, CONFIGURATION},
        logging,
        service::Waiting,
    },
};

use crate::print::{misconfigured, print_error, print_value};

/// Runs the agent, and writes the rest of the log.
pub async fn run(flags: NodeFlags) -> anyhow::Result<ExitCode> {
    logging::start().map_err(|error| anyhow!("no log: {error}"))?;
    for name in unknown_variables() {
        tracing::warn!(name, "Environment variable is unknown: is its name misspelled?");
    }
    let code = match run_until_stopped(&flags).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problems) => misconfigured(&problems),
    };
    logging::flush();
    Ok(code)
}

/// Runs the agent. A service waits for what may be repaired.
async fn run_until_stopped(flags: &NodeFlags) -> Result<(), Vec<Problem>> {
    let mut waiting = Waiting::default();
    loop {
        let settings = waiting.for_settings(flags).await?;
        let Err(problem) = agent::run(settings).await else {
            return Ok(());
        };
        tokio::select! {
            waited = waiting.for_repair(vec![problem]) => waited?,
            // The agent has installed handlers, so that the signals have no default effect.
            stop = agent::wait_for_stop_signal() => return stop.map_err(|problem| vec![problem]),
        }
    }
}

/// Checks whether the agent can work here.
pub async fn run_check(arguments: &CheckArgs) -> anyhow::Result<ExitCode> {
    if arguments.service {
        return check_as_service(Path::new(environment_file::OF_SERVICE));
    }
    let report = check::check(&arguments.node, &unknown_variables()).await;
    print_value(&report, arguments.output, check::Report::table)?;
    Ok(report.exit_code.into())
}

/// Runs this command again, with the variables of the service in place of the user's.
fn check_as_service(settings: &Path) -> anyhow::Result<ExitCode> {
    let variables = match environment_file::read(settings) {
        Ok(variables) => variables,
        // The unit permits that.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            print_error(&format!(
                "cannot read {}: {error}; run check as root",
                settings.display()
            ));
            return Ok(CONFIGURATION.into());
        }
    };
    let mut command = Command::new("/proc/self/exe");
    command.args(env::args_os().skip(1).filter(|argument| argument != "--service"));
    for (name, _) in env::vars_os() {
        let is_setting = |prefix: &str| name.as_bytes().starts_with(prefix.as_bytes());
        if ["POD_TEARDOWN_", "OTEL_"].into_iter().any(is_setting) {
            command.env_remove(name);
        }
    }
    let error = command.envs(variables).exec();
    bail!("cannot check with the settings of the service: {error}")
}
