//! The benchmarks. They need root, containerd, runc, CNI plugins and busybox-static; with a kubelet or for `gc` also the programs of
//! the control plane, which are built if they are missing.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use testbed::{bench, command};

#[derive(Debug, Parser)]
#[command(
    name = "bench",
    about,
    after_help = "Exit code: 0 if all was measured, whether or not the goals are met; 1 if not; 130 after Ctrl-C."
)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Direct CRI calls and the agent take the same pods down, in turn, on the same containerd.
    Pods(bench::pods::Args),
    /// Direct deletion, kube-controller-manager and the agent delete the same ConfigMaps, in turn, on the same control plane; then the agent gets a million objects of an API server in memory.
    Gc(bench::gc::Args),
    /// The agent is on standby beside a kubelet that runs a full node.
    Idle(bench::idle::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    match Args::parse().what {
        What::Pods(args) => command::run("bench", args.run()).await,
        What::Gc(args) => command::run("bench", args.run()).await,
        What::Idle(args) => command::run("bench", args.run()).await,
    }
}
