//! Shows the agent at work on a node of its own. Needs root, containerd, runc, CNI plugins and busybox-static.

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use testbed::{command, demo};

/// Six pods of different character are deleted; watch how the agent takes them down.
#[derive(Debug, Parser)]
#[command(
    name = "demo",
    after_help = "Exit code: 0 if nothing is left of any pod; 1 if something is; 130 after Ctrl-C."
)]
struct Args {
    /// The agent [default: pod-teardown beside this program].
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// Writes a picture of the output to FILE, as SVG.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Args { agent, picture } = Args::parse();
    let play = async { demo::run(&command::beside(agent, "pod-teardown")?, picture.as_deref()).await };
    command::run("demo", play).await
}
