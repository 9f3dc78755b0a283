//! The `pod-teardown` command: runs a verb, and prints its result and sets the exit code.

mod control;
mod kubectl;
mod node;
mod print;
mod query;

use std::{env, ffi::OsString, process::ExitCode};

use jiff::Timestamp;
use pod_teardown::{
    cli::{
        Cli, GcVerb, HandoverArgs, OutputFormat, PodQueryArgs, QueryFlags, TimelineArgs, TimelineFormat, UsageError,
        Verb,
    },
    explanation::Explanation,
    handover::guard::holds::SafetyHolds,
    memory,
    model::trace::Trace,
    node::threads::THREADS,
    ops::{
        admin::{
            self,
            handover::request_handover,
            pause::{self, PAUSE, RESUME},
        },
        check::{FAILURE, USAGE},
        gc_status::{self, GcReport},
        holds, manual,
        report::{self, Report},
        status::{self, StatusReport},
        timeline, version,
    },
    teardown::plan,
};

use self::{
    control::{approve, stop_pod},
    node::{run, run_check},
    print::{print, print_clap_error, print_error},
    query::{post, query},
};

/// The verb that always succeeds.
const HANDOVER: &str = "handover";

fn main() -> ExitCode {
    if kubectl::is_plugin() {
        return run_to_end(kubectl::run());
    }
    let cli = match Cli::read(env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            let code = print_clap_error(&error);
            // A mistake in the kubelet's unit must not prevent its start. Only --socket counts then.
            let must_succeed = code != 0 && env::args_os().nth(1).is_some_and(|verb| verb == HANDOVER);
            match must_succeed.then(|| Cli::read(only_socket(env::args_os())).ok()) {
                None => return ExitCode::from(code),
                Some(None) => return ExitCode::SUCCESS,
                Some(Some(cli)) => cli,
            }
        }
    };
    run_to_end(dispatch(cli.verb))
}

/// The program, its verb and `--socket`.
fn only_socket(mut arguments: env::ArgsOs) -> Vec<OsString> {
    let mut kept: Vec<_> = arguments.by_ref().take(2).collect();
    while let Some(argument) = arguments.next() {
        if argument == "--socket" {
            kept.push(argument);
            kept.extend(arguments.next());
        } else if argument.as_encoded_bytes().starts_with(b"--socket=") {
            kept.push(argument);
        }
    }
    kept
}

fn run_to_end(command: impl Future<Output = anyhow::Result<ExitCode>>) -> ExitCode {
    memory::set_malloc_options();
    // The agent mostly waits, and blocking calls have their own threads: a second worker thread would cost more than it saves.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(THREADS)
        .enable_all()
        .build();
    let ended = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        let ended = runtime.block_on(command);
        // Do not wait for a blocked system call.
        runtime.shutdown_background();
        ended
    });
    ended.unwrap_or_else(|error| {
        print_error(&error.to_string());
        ExitCode::from(if error.is::<UsageError>() { USAGE } else { FAILURE })
    })
}

/// Prints the timeline of a pod, or the known terminations.
async fn show_timeline(arguments: TimelineArgs) -> anyhow::Result<()> {
    let id = arguments.id()?;
    let (draws_svg, output) = match arguments.output {
        TimelineFormat::Table => (false, OutputFormat::Table),
        TimelineFormat::Wide => (false, OutputFormat::Wide),
        TimelineFormat::Json => (false, OutputFormat::Json),
        TimelineFormat::Svg => (true, OutputFormat::Table),
    };
    let socket = arguments.socket;
    let flags = QueryFlags { output, socket };
    let Some(id) = id else {
        if draws_svg {
            let why = "-o svg needs a pod; without one, timeline lists the known terminations".to_owned();
            return Err(UsageError(why).into());
        }
        let namespace = arguments.namespace.as_deref();
        let text = |entries: &Vec<_>, is_wide| timeline::list(entries, namespace, is_wide, Timestamp::now());
        return query(&flags, admin::TIMELINES, text).await;
    };
    let draw = |traces: &Vec<Trace>, is_wide| match draws_svg {
        true => timeline::svg(traces),
        false => {
            let text = |trace| timeline::text(trace, is_wide);
            traces.iter().map(text).collect::<Vec<_>>().join("\n")
        }
    };
    query(&flags, &format!("{}/{id}", admin::TIMELINES), draw).await
}

/// Runs a verb.
async fn dispatch(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Run(flags) => return run(flags).await,
        Verb::Check(arguments) => return run_check(&arguments).await,
        Verb::Status(flags) => {
            let text = |report: &StatusReport, is_wide| status::text(report, is_wide, Timestamp::now());
            query(&flags, admin::STATUS, text).await
        }
        Verb::Timeline(arguments) => show_timeline(arguments).await,
        Verb::Why(PodQueryArgs { pod, query: flags }) => {
            let path = admin::why::request_path(&pod.id()?);
            query(&flags, &path, |why: &Explanation, _| why.text()).await
        }
        Verb::Plan(PodQueryArgs { pod, query: flags }) => {
            query(&flags, &admin::plan::request_path(&pod.id()?), plan::text).await
        }
        Verb::Report(arguments) => {
            let text = |report: &Report, is_wide| report::text(report, arguments.verdict, is_wide);
            let path = admin::report::request_path(arguments.since);
            query(&arguments.query, &path, text).await
        }
        Verb::Stop(arguments) => stop_pod(arguments).await,
        Verb::Holds(flags) => {
            let text = |report: &SafetyHolds, _| holds::text(report, Timestamp::now());
            query(&flags, admin::holds::HOLDS, text).await
        }
        Verb::Approve { request, socket } => approve(request, &socket.socket).await,
        Verb::Handover(HandoverArgs { timeout, socket }) => {
            let printed = print(&request_handover(&socket.socket, timeout).await);
            // It never fails, even if no agent has answered.
            printed.unwrap_or_else(|error| print_error(&error.to_string()));
            Ok(())
        }
        Verb::Pause { request, socket } => post(&socket, PAUSE, &request, pause::paused).await,
        Verb::Resume(socket) => post(&socket, RESUME, &(), pause::resumed).await,
        Verb::Gc { verb } => show_gc(verb).await,
        Verb::Version(socket) => print(&version::text(&socket.socket).await),
        Verb::Completion { shell } => print(&manual::completion(shell)),
        Verb::Man { dir } => Ok(manual::write(&dir)?),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Shows something of the garbage collector.
async fn show_gc(verb: GcVerb) -> anyhow::Result<()> {
    match verb {
        GcVerb::Status(flags) => {
            let text = |report: &GcReport, is_wide| gc_status::text(report, is_wide, Timestamp::now());
            query(&flags, admin::collector::STATUS, text).await
        }
        GcVerb::Graph { object, socket } => {
            let path = admin::collector::graph_path(object.name()?.as_ref());
            let output = OutputFormat::Table;
            let text = |lines: &Vec<String>, _| lines.join("\n");
            query(&QueryFlags { output, socket }, &path, text).await
        }
        GcVerb::Why { object, query: flags } => {
            let path = admin::why::request_path(&object.required_name()?.to_string());
            query(&flags, &path, |why: &Explanation, _| why.text()).await
        }
    }
}
