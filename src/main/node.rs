//! The verbs `run` and `check`.

use std::{
    env, io,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::Path,
    process::{Command, ExitCode},
};

use pod_teardown::{
    agent,
    cli::{CheckArgs, NodeFlags, OutputFormat, unknown_variables},
    model::problem::Problem,
    node::systemd::environment_file,
    ops::{check, logging, service::Waiting},
};

use crate::print::{CONFIGURATION, failed, misconfigured, print_value};

/// Runs the agent, and writes the rest of the log.
pub async fn run(flags: NodeFlags) -> ExitCode {
    if let Err(error) = logging::start() {
        return failed(1, &format!("no log: {error}"));
    }
    for name in unknown_variables() {
        tracing::warn!(name, "Environment variable is unknown: is its name misspelled?");
    }
    let code = match run_until_stopped(&flags).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problems) => misconfigured(&problems),
    };
    logging::flush();
    code
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
pub async fn run_check(arguments: &CheckArgs) -> ExitCode {
    if arguments.service {
        return check_as_service(Path::new(environment_file::OF_SERVICE));
    }
    let report = check::check(&arguments.node, &unknown_variables()).await;
    let (is_json, is_wide) = (
        arguments.output == OutputFormat::Json,
        arguments.output == OutputFormat::Wide,
    );
    print_value(&report, is_json, |report| report.table(is_wide), report.exit_code)
}

/// Runs this command again, with the variables of the service in place of the user's.
fn check_as_service(settings: &Path) -> ExitCode {
    let variables = match environment_file::read(settings) {
        Ok(variables) => variables,
        // The unit permits that.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            let why = format!("cannot read {}: {error}; run check as root", settings.display());
            return failed(CONFIGURATION, &why);
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
    failed(1, &format!("cannot check with the settings of the service: {error}"))
}
