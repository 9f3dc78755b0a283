//! The verbs `run` and `check`.

use std::{collections::BTreeSet, process::ExitCode};

use pod_teardown::{
    agent,
    cli::{CheckArgs, Cli, NodeFlags, OutputFormat, Read, ServiceSettings, Verb},
    model::problem::Problem,
    node::systemd::Systemd,
    ops::{check, logging, service::Waiting},
};

use crate::{
    print::{USAGE, failed, misconfigured, print_clap_error, print_error, print_value},
    query::with_text,
};

/// Runs the agent, and writes the rest of the log.
pub async fn run(flags: NodeFlags, mistakes: &[Problem], unknown_variables: BTreeSet<String>) -> ExitCode {
    if let Err(error) = logging::start() {
        return failed(1, &format!("no log: {error}"));
    }
    let code = run_logged(flags, mistakes, unknown_variables).await;
    logging::flush();
    code
}

async fn run_logged(flags: NodeFlags, mistakes: &[Problem], unknown_variables: BTreeSet<String>) -> ExitCode {
    for name in unknown_variables {
        tracing::warn!(name, "Environment variable is unknown: is its name misspelled?");
    }
    match run_until_stopped(&flags, mistakes).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problems) => misconfigured(&problems),
    }
}

/// Runs the agent. A service waits for what may be repaired.
async fn run_until_stopped(flags: &NodeFlags, mistakes: &[Problem]) -> Result<(), Vec<Problem>> {
    let mut waiting = Waiting::default();
    loop {
        let settings = waiting.for_settings(flags, mistakes).await?;
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

/// Checks whether the agent can work here. Progress goes to standard error.
pub async fn run_check(arguments: CheckArgs, mistakes: Vec<Problem>, unknown_variables: BTreeSet<String>) -> ExitCode {
    let output = arguments.output;
    if !arguments.service {
        let report = checked(&arguments, &mistakes, &unknown_variables, None).await;
        return print_report(&report, output);
    }
    let service = match check::read_service(&Systemd::of_host()).await {
        Ok(service) => service,
        Err(row) => return print_report(&check::Report::new(vec![row]), output),
    };
    let settings = ServiceSettings {
        command: &service.command,
        variables: &service.variables,
    };
    match Cli::read_with_service(std::env::args_os(), settings) {
        Ok(Read {
            cli: Cli {
                verb: Verb::Check(arguments),
            },
            mistakes,
            unknown_variables,
        }) => {
            let report = checked(&arguments, &mistakes, &unknown_variables, Some(service.row)).await;
            print_report(&report, output)
        }
        Ok(_) => failed(1, "the settings of the service are not those of check"),
        Err(error) => {
            print_clap_error(&error);
            ExitCode::from(USAGE)
        }
    }
}

async fn checked(
    arguments: &CheckArgs,
    mistakes: &[Problem],
    unknown_variables: &BTreeSet<String>,
    service: Option<check::Row>,
) -> check::Report {
    let check = async || check::check(&arguments.node, mistakes, unknown_variables, service.clone()).await;
    match arguments.wait {
        Some(limit) => check::until_ready(check, limit, print_error).await,
        None => check().await,
    }
}

fn print_report(report: &check::Report, format: OutputFormat) -> ExitCode {
    let output = with_text(format, |report: &check::Report| {
        report.table(format == OutputFormat::Wide)
    });
    print_value(&output, report, report.exit_code)
}
