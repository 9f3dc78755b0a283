//! Measures an agent on standby. Needs root, containerd, runc, CNI plugins and busybox-static, and the programs of the
//! control plane, which it builds if they are not there.
#![allow(clippy::print_stderr, reason = "this is where a command complains")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use testbed::bench_idle::Plan;
use testbed::command;

/// The agent is on standby beside a real kubelet that runs a node full of pods; see what that costs.
#[derive(Debug, Parser)]
#[command(
    name = "bench-idle",
    after_help = "Exit code: 0 if all was measured, whether or not the goals are met; 1 if not; 130 after Ctrl-C."
)]
struct Args {
    /// How long it is looked at; with a unit, such as 10m.
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = humantime::parse_duration)]
    time: Duration,
    /// How many pods the kubelet runs.
    #[arg(long, value_name = "N", default_value_t = 110)]
    pods: usize,
    /// Writes all figures to FILE as well.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The agent [default: pod-teardown beside this program].
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match measure(Args::parse()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench-idle: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(args: Args) -> Result<ExitCode> {
    let Args {
        time,
        pods,
        json,
        agent,
    } = args;
    let plan = Plan {
        time,
        pods,
        agent: command::beside(agent, "pod-teardown")?,
        json,
    };
    Ok(match command::unless_interrupted(plan.run()).await? {
        Some(()) => ExitCode::SUCCESS,
        None => {
            eprintln!("\nbench-idle: interrupted; the node has been taken away");
            ExitCode::from(command::INTERRUPTED)
        }
    })
}
