//! The API server in memory as a process of its own: prints its URL and serves until SIGTERM.

use std::io::{Write as _, stdout};

use anyhow::{Context as _, Result};
use testbed::apiserver::{Config, MemApiServer};
use tokio::signal::unix::{SignalKind, signal};

// Two cores are shared with what is measured: one thread serves well enough, and leaves the other alone.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("wait for SIGINT")?;
    let server = MemApiServer::start(Config::default()).await?;
    writeln!(stdout(), "{}", server.url()).context("print the URL")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
