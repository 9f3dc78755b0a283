//! Shows the agent at work on a node of its own. Needs root, containerd, runc, CNI plugins and busybox-static.
#![allow(clippy::print_stderr, reason = "this is where a command complains")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
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
    match play(agent, picture).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn play(agent: Option<PathBuf>, picture: Option<PathBuf>) -> Result<ExitCode> {
    let agent = command::beside(agent, "pod-teardown")?;
    Ok(
        match command::unless_interrupted(demo::run(&agent, picture.as_deref())).await? {
            Some(true) => ExitCode::SUCCESS,
            Some(false) => ExitCode::FAILURE,
            None => {
                eprintln!("\ndemo: interrupted; the node has been taken away");
                ExitCode::from(command::INTERRUPTED)
            }
        },
    )
}
