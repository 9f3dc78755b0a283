//! The `pod-teardown` command: runs a verb, and prints its result and sets the exit code.

use std::{
    collections::BTreeSet,
    io::{self, IsTerminal as _, Write as _},
    pin::pin,
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};

use jiff::Timestamp;
use pod_teardown::{
    agent,
    cli::{
        ApproveArgs, CheckArgs, Cli, EvictArgs, GcVerb, GcWhyArgs, GraphArgs, GraphFormat, HandoverArgs, NodeFlags,
        OutputFormat, PauseArgs, PlanArgs, QueryFlags, Read, ReportArgs, ResumeArgs, ServiceSettings, SocketFlag,
        StatusArgs, StopArgs, StopFlags, TimelineArgs, TimelineFormat, Verb, WhyArgs,
    },
    collector::picture::{Picture, dot::dot, svg::svg},
    explanation::Explanation,
    handover::guard::holds::{SafetyHold, SafetyHolds},
    memory,
    model::{
        foreign::{self, ForeignText},
        observation::Verdict,
        problem::{Problem, ProblemKind},
        trace::Trace,
    },
    node::{systemd::Systemd, threads::THREADS},
    object_name::ObjectName,
    ops::{
        admin::{
            self,
            pause::{PAUSE, PauseRequest, RESUME},
            stop::StopRequest,
        },
        approve, check,
        client::{self, ClientError},
        colors,
        gc_status::{self, GcReport},
        handover, holds, logging, manual,
        output::{self, Output},
        pause, reader,
        report::{self, Report},
        service,
        status::{self, StatusReport},
        stop::{self, Wait},
        timeline, version,
    },
    teardown::plan::{self, Plan},
};
use serde::{Serialize, de::DeserializeOwned};

/// sysexits.h `EX_USAGE`.
const USAGE: u8 = 64;
/// `status --exit-code`: something is blocked.
const BLOCKED: u8 = 2;
/// How often `--watch` queries the agent.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// How often `timeline --follow` queries the agent.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);
/// Moves the cursor to the upper left, and clears the screen.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";
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
        Verb::Check(arguments) => run_check(arguments, mistakes, unknown_variables).await,
        Verb::Status(arguments) => show_status(&arguments).await,
        Verb::Timeline(arguments) if arguments.follow => while_read(show_timeline(arguments)).await,
        Verb::Timeline(arguments) => show_timeline(arguments).await,
        Verb::Why(WhyArgs {
            pod,
            watch,
            query: flags,
        }) => match pod.id() {
            Ok(pod) if watch => watch_explanation(&flags, &pod.to_string()).await,
            Ok(pod) => explain(&flags, &pod.to_string()).await,
            Err(why) => failed(USAGE, &why),
        },
        Verb::Plan(PlanArgs { pod, query: flags }) => match pod.id() {
            Ok(pod) => {
                let path = admin::plan::request_path(&pod.to_string());
                let is_wide = flags.output == OutputFormat::Wide;
                let text = |plan: &Plan| plan::text(plan, is_wide);
                query(&flags.socket, &path, with_text(flags.output, text)).await
            }
            Err(why) => failed(USAGE, &why),
        },
        Verb::Report(ReportArgs {
            since,
            verdict,
            query: flags,
        }) => {
            let is_wide = flags.output == OutputFormat::Wide;
            let text = |report: &Report| report::text(report, verdict.map(Verdict::from), is_wide);
            let path = admin::report::request_path(since);
            query(&flags.socket, &path, with_text(flags.output, text)).await
        }
        Verb::Stop(StopArgs { flags }) => stop_pod(&flags, "stop", None, None).await,
        Verb::Evict(EvictArgs { flags, reason, message }) => {
            stop_pod(&flags, "evict", Some(reason), Some(message)).await
        }
        Verb::Holds(QueryFlags { socket, output }) => {
            let is_wide = output == OutputFormat::Wide;
            let text = |report: &SafetyHolds| holds::text(report, is_wide, Timestamp::now());
            query(&socket, admin::holds::HOLDS, with_text(output, text)).await
        }
        Verb::Approve(args) => approve(args).await,
        Verb::Handover(HandoverArgs { timeout, socket }) => {
            for mistake in mistakes {
                print_error(&format!("{mistake}; the default is used"));
            }
            print(&handover::request_handover(&socket.socket, timeout).await, 0);
            // Even if no agent has answered.
            ExitCode::SUCCESS
        }
        Verb::Pause(arguments) => pause_agent(arguments).await,
        Verb::Resume(ResumeArgs { socket }) => post(&socket, RESUME, &(), pause::resumed).await,
        Verb::Gc { verb } => show_collector(verb).await,
        Verb::Version(arguments) => show_version(&arguments).await,
        Verb::Completions { shell } => print(&manual::completions(shell), 0),
        Verb::Man { dir } => match manual::write(&dir) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(1, &error.to_string()),
        },
    }
}

/// Queries the agent once, or with `--watch` again and again.
async fn show_status(arguments: &StatusArgs) -> ExitCode {
    let StatusArgs {
        watch,
        exit_code,
        query,
    } = arguments;
    let QueryFlags { socket, output } = query;
    let is_wide = *output == OutputFormat::Wide;
    let text = |report: &StatusReport| status::text(report, is_wide, Timestamp::now());
    let output = with_text(*output, text);
    if *watch {
        return while_read(watch_answer(socket, admin::STATUS, output, |_| false)).await;
    }
    if !exit_code {
        return self::query(socket, admin::STATUS, output).await;
    }
    match client::get_raw(&socket.socket, admin::STATUS).await {
        Ok(answer) => match (answer.parse(), answer.format(output.as_ref())) {
            (Ok(report), Ok(text)) => {
                let code = if status::is_blocked(&report) { BLOCKED } else { 0 };
                print_formatted(&output, &text, code)
            }
            (Err(error), _) | (_, Err(error)) => failed(1, &error.to_string()),
        },
        Err(error) => failed(1, &error.to_string()),
    }
}

async fn show_version(QueryFlags { socket, output }: &QueryFlags) -> ExitCode {
    let versions = version::collect(&socket.socket).await;
    let text = match output {
        OutputFormat::Table | OutputFormat::Wide => Ok(version::text(&versions)),
        OutputFormat::Json => serde_json::to_vec(&versions).and_then(|json| output::json(&json)),
        OutputFormat::Yaml => serde_json::to_vec(&versions).and_then(|json| output::yaml(&json)),
    };
    match text {
        Ok(text) => print(&text, 0),
        Err(error) => failed(1, &error.to_string()),
    }
}

async fn show_collector(verb: GcVerb) -> ExitCode {
    match verb {
        GcVerb::Status(QueryFlags { socket, output }) => {
            let is_wide = output == OutputFormat::Wide;
            let text = |report: &GcReport| gc_status::text(report, is_wide, Timestamp::now());
            query(&socket, admin::collector::STATUS, with_text(output, text)).await
        }
        GcVerb::Graph(GraphArgs {
            object,
            uid,
            output,
            socket,
        }) => {
            let center = match object.name() {
                Ok(center) => center.or(uid.map(ObjectName::Uid)),
                Err(why) => return failed(USAGE, &why),
            };
            let output: Output<fn(&Picture) -> String> = match output {
                GraphFormat::Dot => Output::Text(dot),
                GraphFormat::Svg => Output::Text(svg),
                GraphFormat::Json => Output::Json,
                GraphFormat::Yaml => Output::Yaml,
            };
            query(&socket, &admin::collector::graph_path(center.as_ref()), output).await
        }
        GcVerb::Why(GcWhyArgs { object, query: flags }) => match object.name() {
            Ok(name) => explain(&flags, &name.to_string()).await,
            Err(why) => failed(USAGE, &why),
        },
    }
}

async fn explain(QueryFlags { socket, output }: &QueryFlags, object: &str) -> ExitCode {
    let path = admin::why::request_path(object);
    query(socket, &path, with_text(*output, Explanation::text)).await
}

/// Explains a pod again and again, until it is gone.
async fn watch_explanation(QueryFlags { socket, output }: &QueryFlags, pod: &str) -> ExitCode {
    let path = admin::why::request_path(pod);
    let is_gone = |why: &Explanation| why.is_gone;
    while_read(watch_answer(
        socket,
        &path,
        with_text(*output, Explanation::text),
        is_gone,
    ))
    .await
}

/// Shows or follows the timeline of a pod, or lists the known ones.
async fn show_timeline(arguments: TimelineArgs) -> ExitCode {
    let TimelineArgs {
        pod,
        follow,
        output,
        socket,
    } = arguments;
    let pod = match pod.id_or_namespace() {
        Err(why) => return failed(USAGE, &why),
        Ok(Err(_)) if follow || output == TimelineFormat::Svg => {
            return failed(
                USAGE,
                "--follow and -o svg need a POD; without one, timeline lists the known terminations",
            );
        }
        Ok(Err(namespace)) => {
            let is_wide = output == TimelineFormat::Wide;
            let list = |entries: &Vec<_>| timeline::list(entries, namespace.as_deref(), is_wide, Timestamp::now());
            return query(&socket, admin::TIMELINES, timeline_output(output, list)).await;
        }
        Ok(Ok(pod)) => pod,
    };
    let path = format!("{}/{pod}", admin::TIMELINES);
    let draws_svg = output == TimelineFormat::Svg;
    let draw = |traces: &Vec<Trace>| match draws_svg {
        true => timeline::svg(traces),
        false => traces.iter().map(timeline::text).collect::<Vec<_>>().join("\n"),
    };
    let output = timeline_output(output, draw);
    if follow {
        let shows = matches!(&output, Output::Text(_)) && !draws_svg && io::stdout().is_terminal();
        loop {
            match client::get::<Vec<Trace>>(&socket.socket, &path).await {
                Err(error) => return failed(1, &error.to_string()),
                Ok(traces) if timeline::are_finished(&traces) => break,
                Ok(traces) if shows => {
                    // A failure is reported by the last write.
                    write!(io::stdout(), "{CLEAR_SCREEN}").ok();
                    let code = print(&draw(&traces), 0);
                    if code != ExitCode::SUCCESS {
                        return code;
                    }
                }
                Ok(_) => {}
            }
            tokio::time::sleep(FOLLOW_INTERVAL).await;
        }
        if shows {
            write!(io::stdout(), "{CLEAR_SCREEN}").ok();
        }
    }
    query(&socket, &path, output).await
}

/// The output format of a timeline, with its text form.
fn timeline_output<F>(output: TimelineFormat, text: F) -> Output<F> {
    match output {
        TimelineFormat::Json => Output::Json,
        TimelineFormat::Yaml => Output::Yaml,
        TimelineFormat::Table | TimelineFormat::Wide | TimelineFormat::Svg => Output::Text(text),
    }
}

/// The output format of a query, with its text form.
fn with_text<F>(output: OutputFormat, text: F) -> Output<F> {
    match output {
        OutputFormat::Json => Output::Json,
        OutputFormat::Yaml => Output::Yaml,
        OutputFormat::Table | OutputFormat::Wide => Output::Text(text),
    }
}

/// Queries the agent, and prints the answer.
async fn query<T: DeserializeOwned>(
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
async fn while_read(command: impl Future<Output = ExitCode>) -> ExitCode {
    tokio::select! {
        code = command => code,
        () = reader::wait_until_gone() => ExitCode::SUCCESS,
    }
}

/// Queries the agent until Ctrl-C or the last answer, and prints each change. An agent that does not answer at first is an error;
/// later it is waited for. An object that it no longer knows is gone.
async fn watch_answer<T: DeserializeOwned>(
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
async fn post<T: DeserializeOwned>(
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

/// Pauses the agent.
async fn pause_agent(arguments: PauseArgs) -> ExitCode {
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
async fn approve(args: ApproveArgs) -> ExitCode {
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

/// Stops a pod and waits. Progress goes to standard error, the result to standard output.
async fn stop_pod(flags: &StopFlags, verb: &str, reason: Option<String>, message: Option<String>) -> ExitCode {
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

/// Checks whether the agent can work here. Progress goes to standard error.
async fn run_check(arguments: CheckArgs, mistakes: Vec<Problem>, unknown_variables: BTreeSet<String>) -> ExitCode {
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
    let json = || serde_json::to_vec(report).unwrap_or_default();
    let text = match &output {
        Output::Text(text) => Ok(text(report)),
        Output::Json => output::json(&json()),
        Output::Yaml => output::yaml(&json()),
    };
    match text {
        Ok(text) => print_formatted(&output, &text, report.exit_code),
        Err(error) => failed(1, &error.to_string()),
    }
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

/// Prints an answer. The verdicts of a text are colored, if standard output may have colors.
fn print_formatted<F>(output: &Output<F>, text: &str, code: u8) -> ExitCode {
    print_raw(&formatted(output, text), code)
}

fn formatted<F>(output: &Output<F>, text: &str) -> String {
    let escaped = foreign::escape_lines(text.trim_end());
    if output.is_text() && colors::are_allowed(&io::stdout()) {
        colors::paint(&escaped)
    } else {
        escaped
    }
}

fn print(text: &str, code: u8) -> ExitCode {
    print_raw(&foreign::escape_lines(text.trim_end()), code)
}

/// Prints a text whose control characters are escaped. A closed pipe is no error.
fn print_raw(text: &str, code: u8) -> ExitCode {
    match write_line(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => failed(1, &format!("standard output: {error}")),
        _ => ExitCode::from(code),
    }
}

fn write_line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush())
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
