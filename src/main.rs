//! The command: parses, calls, and turns what comes back into text and an exit code.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use jiff::Timestamp;
use pod_teardown::{
    agent,
    cli::{Cli, GcVerb, GraphFormat, NodeFlags, TimelineFormat, Verb},
    config::{self, Problem, ProblemKind},
    gc::{
        picture::{Picture, dot::dot, svg::svg},
        why::Why,
    },
    memory,
    node::turns::THREADS,
    ops::{
        admin, check,
        client::{self, AskError},
        gc_status::{self, GcReport},
        logging,
        status::{self, StatusReport},
        timeline,
    },
    record::Story,
};

/// From sysexits.h: the command was used wrongly.
const USAGE: u8 = 64;
/// From sysexits.h: something is configured wrongly.
const CONFIGURATION: u8 = 78;

fn main() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            // Nobody reads it if the terminal is gone.
            error.print().ok();
            return if error.use_stderr() {
                ExitCode::from(USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    memory::keep_small();
    // Nearly all of the agent's time is waiting; what blocks has threads of its own. A second thread for the rest would
    // cost more in handing work over than it could do.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(THREADS)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return failed(1, &error.to_string()),
    };
    let code = runtime.block_on(dispatch(cli));
    // A system call that hangs must not keep the process.
    runtime.shutdown_background();
    code
}

async fn dispatch(cli: Cli) -> ExitCode {
    match cli.verb {
        Verb::Run(flags) => run(flags).await,
        Verb::Check(flags) => run_check(flags).await,
        Verb::Status { socket, json } => match client::ask::<StatusReport>(&socket.socket, admin::STATUS).await {
            Ok(report) if json => print(&serde_json::to_string_pretty(&report).unwrap_or_default(), 0),
            Ok(report) => print(&status::text(&report, Timestamp::now()), 0),
            Err(error) => failed(1, &error.to_string()),
        },
        Verb::Timeline { pod, format, socket } => {
            let path = format!("{}/{pod}", admin::TIMELINES);
            match (client::ask::<Vec<Story>>(&socket.socket, &path).await, format) {
                (Ok(stories), TimelineFormat::Text) => {
                    print(&stories.iter().map(timeline::text).collect::<Vec<_>>().join("\n"), 0)
                }
                (Err(error @ AskError::Refused(_)), _) | (Err(error), _) => failed(1, &error.to_string()),
            }
        }
        Verb::Why { object, socket, json } => {
            match client::ask::<Why>(&socket.socket, &admin::gc::why_question(&object)).await {
                Ok(why) if json => print(&serde_json::to_string_pretty(&why).unwrap_or_default(), 0),
                Ok(why) => print(&why.text(), 0),
                Err(error) => failed(1, &error.to_string()),
            }
        }
        Verb::Gc {
            verb: GcVerb::Status { socket, json },
        } => match client::ask::<GcReport>(&socket.socket, admin::gc::STATUS).await {
            Ok(report) if json => print(&serde_json::to_string_pretty(&report).unwrap_or_default(), 0),
            Ok(report) => print(&gc_status::text(&report, Timestamp::now()), 0),
            Err(error) => failed(1, &error.to_string()),
        },
        Verb::Gc {
            verb: GcVerb::Graph { uid, format, socket },
        } => match client::ask::<Picture>(&socket.socket, &admin::gc::question(uid.as_deref())).await {
            Ok(picture) => {
                let text = match format {
                    GraphFormat::Dot => dot(&picture),
                    GraphFormat::Svg => svg(&picture),
                    GraphFormat::Json => serde_json::to_string_pretty(&picture).unwrap_or_default(),
                };
                print(&text, 0)
            }
            Err(error) => failed(1, &error.to_string()),
        },
    }
}

async fn run(flags: NodeFlags) -> ExitCode {
    logging::start();
    let settings = match config::validate(&flags).await {
        Ok(settings) => settings,
        Err(problems) => return misconfigured(&problems),
    };
    match agent::run(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => misconfigured(&[problem]),
    }
}

async fn run_check(flags: NodeFlags) -> ExitCode {
    let rows = match config::validate(&flags).await {
        Ok(settings) => check::all(settings).await,
        Err(problems) => problems.into_iter().map(check::Row::from).collect(),
    };
    print(&check::table(&rows), check::exit_code(&rows))
}

fn misconfigured(problems: &[Problem]) -> ExitCode {
    for problem in problems {
        complain(&problem.to_string());
    }
    let any = |kind| problems.iter().any(|problem| problem.kind == kind);
    ExitCode::from(if any(ProblemKind::Usage) {
        USAGE
    } else if any(ProblemKind::Configuration) {
        CONFIGURATION
    } else {
        1
    })
}

/// Whoever closes the pipe has read enough; what else keeps the output from its place is told.
fn print(text: &str, code: u8) -> ExitCode {
    let mut out = io::stdout().lock();
    match writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => failed(1, &format!("standard output: {error}")),
        _ => ExitCode::from(code),
    }
}

fn failed(code: u8, why: &str) -> ExitCode {
    complain(why);
    ExitCode::from(code)
}

fn complain(why: &str) {
    // There is nobody else to tell.
    writeln!(io::stderr(), "pod-teardown: {why}").ok();
}
