//! Measures the collector against direct deletion and kube-controller-manager. Needs the programs of the control plane,
//! which it builds if they are not there.
#![allow(clippy::print_stderr, reason = "this is where a command complains")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use testbed::bench_gc::{Part, Plan};
use testbed::command;

/// Direct deletion, kube-controller-manager and the agent clear the same ConfigMaps away, in turn, on the same control
/// plane; then the agent meets a million objects on an API server in memory.
#[derive(Debug, Parser)]
#[command(
    name = "bench-gc",
    after_help = "Exit code: 0 if all was measured, whether or not the goals are met; 1 if not; 130 after Ctrl-C."
)]
struct Args {
    /// How many dependents the one owner has.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "5000,100000")]
    objects: Vec<u32>,
    /// Deletes more than 20,000 in the foreground, too.
    #[arg(long)]
    foreground: bool,
    /// How often each takes its turn.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Who takes part.
    #[arg(long, value_name = "WHO", value_delimiter = ',', default_value = "direct,kcm,agent")]
    only: Vec<Part>,
    /// Requests of direct deletion at once. Each is tried with few objects; the fastest takes part.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "20,64,128")]
    in_flight: Vec<usize>,
    /// Workers of kube-controller-manager, which has 20 by default.
    #[arg(long, value_name = "N", default_value_t = 64)]
    workers: u16,
    /// How many objects the agent meets on the API server in memory; 0 for none of that.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    scale: u32,
    /// One round of 500, and 20,000 in memory: shows that the bench works, and no more.
    #[arg(long, conflicts_with_all = ["objects", "rounds", "foreground", "scale"])]
    quick: bool,
    /// Writes all figures to FILE as well.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The agent [default: pod-teardown beside this program].
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// The API server in memory [default: testbed-apiserver beside this program].
    #[arg(long, value_name = "PATH")]
    apiserver: Option<PathBuf>,
}

// One thread is enough, and the measured processes need the two cores.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match measure(Args::parse()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench-gc: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(args: Args) -> Result<ExitCode> {
    let Args {
        objects,
        foreground,
        rounds,
        only,
        in_flight,
        workers,
        scale,
        quick,
        json,
        agent,
        apiserver,
    } = args;
    let (objects, rounds, scale) = if quick {
        (vec![500], 1, 20_000)
    } else {
        (objects, rounds, scale)
    };
    let plan = Plan {
        objects,
        foreground,
        rounds,
        only,
        in_flight,
        workers,
        scale,
        agent: command::beside(agent, "pod-teardown")?,
        apiserver: command::beside(apiserver, "testbed-apiserver")?,
        json,
    };
    Ok(match command::unless_interrupted(plan.run()).await? {
        Some(()) => ExitCode::SUCCESS,
        None => {
            eprintln!("\nbench-gc: interrupted; the control plane has been taken away");
            ExitCode::from(command::INTERRUPTED)
        }
    })
}
