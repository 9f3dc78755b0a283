//! Measures the agent against direct CRI calls. Needs root, containerd, runc, CNI plugins and busybox-static; for pods of a
//! real kubelet also the programs of the control plane, which it builds if they are not there.
#![allow(clippy::print_stderr, reason = "this is where a command complains")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use testbed::bench::Plan;
use testbed::command;

/// Direct CRI calls and the agent take the same pods down, in turn, on the same containerd.
#[derive(Debug, Parser)]
#[command(
    name = "bench",
    after_help = "Exit code: 0 if all was measured, whether or not the goals are met; 1 if not; 130 after Ctrl-C."
)]
struct Args {
    /// How many pods at a time; from 100 on each has an emptyDir in memory, in further rounds a hook and a sidecar, and then needs four seconds to exit.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1,50,110",
        default_value_if("kubelet", "true", "110")
    )]
    pods: Vec<usize>,
    /// How many pods wait for an agent that takes over.
    #[arg(long, value_name = "N", default_value_t = 50)]
    waiting: usize,
    /// How often each way is taken.
    #[arg(long, value_name = "N", default_value_t = 7)]
    rounds: usize,
    /// Two rounds of 1 and 10 pods: shows that the bench works, and no more.
    #[arg(long, conflicts_with_all = ["pods", "rounds", "waiting"])]
    quick: bool,
    /// A real kubelet makes the pods, each with an emptyDir in memory, and is killed before each teardown. Needs the control plane, which is built once with Go. A round takes about a minute with 110 pods.
    #[arg(long, conflicts_with_all = ["waiting", "quick", "apiserver"])]
    kubelet: bool,
    /// The kubelet has a turn, too, in which it is not killed.
    #[arg(long, requires = "kubelet")]
    against_kubelet: bool,
    /// Writes all figures to FILE as well.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The agent [default: pod-teardown beside this program].
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// The API server [default: testbed-apiserver beside this program].
    #[arg(long, value_name = "PATH")]
    apiserver: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match measure(Args::parse()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(args: Args) -> Result<ExitCode> {
    let Args {
        pods,
        waiting,
        rounds,
        quick,
        kubelet,
        against_kubelet,
        json,
        agent,
        apiserver,
    } = args;
    let (pods, waiting, rounds) = if quick {
        (vec![1, 10], 10, 2)
    } else {
        (pods, waiting, rounds)
    };
    let plan = Plan {
        pods,
        waiting,
        rounds,
        of_kubelet: kubelet,
        against_kubelet,
        agent: command::beside(agent, "pod-teardown")?,
        apiserver: command::beside(apiserver, "testbed-apiserver")?,
        json,
    };
    Ok(match command::unless_interrupted(plan.run()).await? {
        Some(()) => ExitCode::SUCCESS,
        None => {
            eprintln!("\nbench: interrupted; the node has been taken away");
            ExitCode::from(command::INTERRUPTED)
        }
    })
}
