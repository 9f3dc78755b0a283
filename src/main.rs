//! The `pod-teardown` command: runs a verb, and prints its result and sets the exit code.

use std::{
    collections::BTreeSet,
    io::{self, Write as _},
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};

use jiff::Timestamp;
use pod_teardown::{
    agent,
    cli::{
        ApproveArgs, Cli, EvictArgs, GcVerb, GraphArgs, GraphFormat, HandoverArgs, NodeFlags, PauseArgs, QueryFlags,
        Read, ResumeArgs, SocketFlag, StopArgs, StopFlags, TimelineArgs, TimelineFormat, Verb, WhyArgs,
    },
    collector::picture::{Picture, dot::dot, svg::svg},
    explanation::Explanation,
    handover::guard::holds::SafetyHolds,
    memory,
    model::{
        foreign::{self, ForeignText},
        problem::{Problem, ProblemKind},
        trace::Trace,
    },
    node::threads::THREADS,
    ops::{
        admin::{
            self,
            pause::{PAUSE, RESUME},
            stop::StopRequest,
        },
        check, client,
        gc_status::{self, GcReport},
        handover, holds, logging, manual, pause, service,
        status::{self, StatusReport},
        stop, timeline,
    },
};
use serde::{Serialize, de::DeserializeOwned};

/// sysexits.h `EX_USAGE`.
const USAGE: u8 = 64;
/// The verb that always succeeds.
const HANDOVER: &str = "handover";
/// sysexits.h `EX_CONFIG`.
const CONFIGURATION: u8 = 78;

fn main() -> ExitCode {
    let read = match Cli::read(std::env::args_os()) {
        Ok(read) => read,
        Err(error) => {
            print_clap_error(&error);
            let code = if error.use_stderr() { USAGE } else { 0 };
            // A mistake in the kubelet's unit must not prevent its start or the handover.
            let must_succeed = code != 0 && std::env::args_os().nth(1).is_some_and(|verb| verb == HANDOVER);
            let without_flags = || Cli::read(std::env::args_os().take(2)).ok();
            match must_succeed.then(without_flags) {
                None => return ExitCode::from(code),
                Some(None) => return ExitCode::SUCCESS,
                Some(Some(read)) => read,
            }
        }
    };
    memory::set_malloc_options();
    // The agent mostly waits, and blocking calls have their own threads: a second worker thread would cost more than it saves.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(THREADS)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return failed(1, &error.to_string()),
    };
    let code = runtime.block_on(dispatch(read));
    // Do not wait for a blocked system call.
    runtime.shutdown_background();
    code
}

async fn dispatch(
    Read {
        cli,
        mistakes,
        unknown_variables,
    }: Read,
) -> ExitCode {
    match cli.verb {
        Verb::Run(flags) => run(flags, &mistakes, unknown_variables).await,
        Verb::Check(flags) => run_check(flags, &mistakes, unknown_variables).await,
        Verb::Status(QueryFlags { socket, json }) => {
            let text = |report: &StatusReport| status::text(report, Timestamp::now());
            query(&socket, admin::STATUS, (!json).then_some(text)).await
        }
        Verb::Timeline(TimelineArgs { pod, format, socket }) => {
            let text: Option<fn(&Vec<Trace>) -> String> = match format {
                TimelineFormat::Text => Some(|traces| traces.iter().map(timeline::text).collect::<Vec<_>>().join("\n")),
                TimelineFormat::Svg => Some(|traces| timeline::svg(traces)),
                TimelineFormat::Json => None,
            };
            query(&socket, &format!("{}/{pod}", admin::TIMELINES), text).await
        }
        Verb::Why(WhyArgs {
            object,
            query: QueryFlags { socket, json },
        }) => {
            query(
                &socket,
                &admin::why::request_path(&object),
                (!json).then_some(Explanation::text),
            )
            .await
        }
        Verb::Stop(StopArgs { flags }) => stop_pod(&flags, "stop", None, None).await,
        Verb::Evict(EvictArgs { flags, reason, message }) => {
            stop_pod(&flags, "evict", Some(reason), Some(message)).await
        }
        Verb::Holds(QueryFlags { socket, json }) => {
            let text = |report: &SafetyHolds| holds::text(report, Timestamp::now());
            query(&socket, admin::holds::HOLDS, (!json).then_some(text)).await
        }
        Verb::Approve(ApproveArgs { item, digest, socket }) => approve(&socket, item, digest).await,
        Verb::Handover(HandoverArgs { timeout, socket }) => {
            for mistake in mistakes {
                print_error(&format!("{mistake}; the default is used"));
            }
            print(&handover::request_handover(&socket.socket, timeout).await, 0);
            // Even if no agent has answered.
            ExitCode::SUCCESS
        }
        Verb::Pause(PauseArgs { socket }) => post(&socket, PAUSE, pause::paused).await,
        Verb::Resume(ResumeArgs { socket }) => post(&socket, RESUME, pause::resumed).await,
        Verb::Gc {
            verb: GcVerb::Status(QueryFlags { socket, json }),
        } => {
            let text = |report: &GcReport| gc_status::text(report, Timestamp::now());
            query(&socket, admin::collector::STATUS, (!json).then_some(text)).await
        }
        Verb::Gc {
            verb: GcVerb::Graph(GraphArgs { uid, format, socket }),
        } => {
            let text: Option<fn(&Picture) -> String> = match format {
                GraphFormat::Dot => Some(dot),
                GraphFormat::Svg => Some(svg),
                GraphFormat::Json => None,
            };
            query(&socket, &admin::collector::graph_path(uid.as_deref()), text).await
        }
        Verb::Completions { shell } => print(&manual::completions(shell), 0),
        Verb::Man { dir } => match manual::write(&dir) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(1, &error.to_string()),
        },
    }
}

/// Queries the agent, and prints the answer as text or JSON.
async fn query<T: Serialize + DeserializeOwned>(
    socket: &SocketFlag,
    path: &str,
    text: Option<impl FnOnce(&T) -> String>,
) -> ExitCode {
    let json = |answer: T| foreign::escape_json(serde_json::to_string_pretty(&answer).unwrap_or_default());
    let answer = match text {
        Some(text) => client::get(&socket.socket, path).await.map(|answer| text(&answer)),
        None => client::get_unescaped(&socket.socket, path).await.map(json),
    };
    match answer {
        Ok(answer) => print(&answer, 0),
        Err(error) => failed(1, &error.to_string()),
    }
}

/// Sends a command to the agent, and prints the answer.
async fn post<T: DeserializeOwned>(socket: &SocketFlag, path: &str, text: impl FnOnce(&T) -> String) -> ExitCode {
    match client::post::<T>(&socket.socket, path, &()).await {
        Ok(answer) => print(&text(&answer), 0),
        Err(error) => failed(1, &error.to_string()),
    }
}

/// Approves a safety hold, with this digest or the present one.
async fn approve(socket: &SocketFlag, item: String, digest: Option<String>) -> ExitCode {
    let digest = match digest {
        Some(digest) => digest,
        None => match client::get::<SafetyHolds>(&socket.socket, admin::holds::HOLDS).await {
            Err(error) => return failed(1, &error.to_string()),
            Ok(report) => match report.find(&item) {
                Err(why) => return failed(1, &why),
                Ok(item) => item.digest.clone(),
            },
        },
    };
    let request = admin::holds::ApprovalRequest {
        item,
        digest: Some(digest),
    };
    match client::post(&socket.socket, admin::holds::APPROVE, &request).await {
        Ok(approved) => print(&holds::approved(&approved), 0),
        Err(error) => failed(1, &error.to_string()),
    }
}

/// Stops a pod and waits. Progress goes to standard error, the result to standard output.
async fn stop_pod(flags: &StopFlags, verb: &str, reason: Option<String>, message: Option<String>) -> ExitCode {
    let request = StopRequest {
        uid: flags.uid.clone(),
        grace_seconds: flags.grace,
        reason,
        message,
    };
    match stop::follow(&flags.socket.socket, &flags.pod, verb, &request, print_error).await {
        Ok(result) => print(&stop::text(&result), 0),
        Err(error) => failed(1, &error.to_string()),
    }
}

async fn run(flags: NodeFlags, mistakes: &[Problem], unknown_variables: BTreeSet<String>) -> ExitCode {
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
    let settings = match service::wait_for_settings(&flags, mistakes).await {
        Ok(settings) => settings,
        Err(problems) => return misconfigured(&problems),
    };
    match agent::run(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => misconfigured(&[problem]),
    }
}

async fn run_check(flags: NodeFlags, mistakes: &[Problem], unknown_variables: BTreeSet<String>) -> ExitCode {
    let report = check::check(&flags, mistakes, &unknown_variables, None).await;
    print(&report.table(false), report.exit_code)
}

/// Prints the problems after the log, for a second at most: standard error may be a pipe without a reader.
fn misconfigured(problems: &[Problem]) -> ExitCode {
    let errors: Vec<_> = problems.iter().map(Problem::to_string).collect();
    let (printed, all_printed) = mpsc::channel();
    logging::flush();
    thread::spawn(move || {
        errors.iter().for_each(|error| print_error(error));
        printed.send(()).ok();
    });
    all_printed.recv_timeout(Duration::from_secs(1)).ok();
    let any = |kind| problems.iter().any(|problem| problem.kind == kind);
    ExitCode::from(if any(ProblemKind::Usage) || any(ProblemKind::NotGiven) {
        USAGE
    } else if any(ProblemKind::Configuration) || any(ProblemKind::Absent) {
        CONFIGURATION
    } else {
        1
    })
}

/// Prints the text. A closed pipe is no error.
fn print(text: &str, code: u8) -> ExitCode {
    let mut out = io::stdout().lock();
    match writeln!(out, "{}", foreign::escape_lines(text.trim_end())).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => failed(1, &format!("standard output: {error}")),
        _ => ExitCode::from(code),
    }
}

fn failed(code: u8, why: &str) -> ExitCode {
    print_error(why);
    ExitCode::from(code)
}

/// Prints an error of the command line, or the help or version that was asked for.
fn print_clap_error(error: &clap::Error) {
    // The write fails without a terminal.
    if error.use_stderr() {
        // It quotes arguments unescaped. After the styles are removed, all control characters are untrusted.
        let text = without_styles(&error.render().ansi().to_string());
        write!(io::stderr(), "{}", foreign::escape_lines(&text)).ok();
    } else {
        error.print().ok();
    }
}

/// Removes colors and other styles. Nothing else is removed: a reader has to see what an argument contains.
fn without_styles(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let after = part.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == ';');
        match after.strip_prefix('m') {
            Some(text) => plain += text,
            None => plain.extend(["\u{1b}[", part]),
        }
    }
    plain
}

fn print_error(why: &str) {
    let why = ForeignText::new(why);
    // An error here cannot be reported.
    writeln!(io::stderr(), "pod-teardown: {why}").ok();
}
