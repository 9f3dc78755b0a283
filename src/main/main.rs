//! The `pod-teardown` command: runs a verb, and prints its result and sets the exit code.

mod control;
mod kubectl;
mod node;
mod print;
mod query;
mod show;

use std::process::ExitCode;

use jiff::Timestamp;
use pod_teardown::{
    cli::{Cli, HandoverArgs, OutputFormat, PlanArgs, QueryFlags, Read, ReportArgs, ResumeArgs, Verb, WhyArgs},
    handover::guard::holds::SafetyHolds,
    memory,
    model::observation::Verdict,
    node::threads::THREADS,
    ops::{
        admin::{self, pause::RESUME},
        handover, holds, manual, pause,
        report::{self, Report},
    },
    teardown::plan::{self, Plan},
};

use self::{
    control::{approve, pause_agent, stop_pod},
    node::{run, run_check},
    print::{USAGE, failed, print, print_clap_error, print_error},
    query::{post, query, while_read, with_text},
    show::{explain, show_collector, show_status, show_timeline, show_version, watch_explanation},
};

/// The verb that always succeeds.
const HANDOVER: &str = "handover";

fn main() -> ExitCode {
    if kubectl::is_plugin() {
        return run_to_end(kubectl::run());
    }
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
    run_to_end(dispatch(read))
}

fn run_to_end(command: impl Future<Output = ExitCode>) -> ExitCode {
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
    let code = runtime.block_on(command);
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
        Verb::Stop(arguments) => stop_pod(arguments).await,
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
        Verb::Completion { shell } => print(&manual::completion(shell), 0),
        Verb::Man { dir } => match manual::write(&dir) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(1, &error.to_string()),
        },
    }
}
