//! The API server in memory as a process of its own: prints its URL and serves until SIGTERM.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Parser;
use testbed::apiserver::{Config, MemApiServer};
use tokio::signal::unix::{SignalKind, signal};

/// A Kubernetes API server in memory.
#[derive(Debug, Parser)]
#[command(name = "testbed-apiserver")]
struct Args {
    /// Where to listen; port 0 picks a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Writes the administrator's kubeconfig to FILE, and each node's to FILE.NODE.
    #[arg(long, value_name = "FILE")]
    print_kubeconfig: Option<PathBuf>,
    /// A node that is registered from the start; may be repeated.
    #[arg(long, value_name = "NAME")]
    node: Vec<String>,
}

// Two cores are shared with what is measured: one thread serves well enough, and leaves the other alone.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Args {
        listen,
        print_kubeconfig,
        node,
    } = Args::parse();
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let server = MemApiServer::start(Config {
        listen,
        nodes: node.clone(),
        ..Config::default()
    })
    .await?;
    if let Some(file) = &print_kubeconfig {
        write(file, &server.admin_kubeconfig())?;
        for node in &node {
            let mut beside = file.clone().into_os_string();
            beside.push(format!(".{node}"));
            write(Path::new(&beside), &server.node_kubeconfig(node))?;
        }
    }
    writeln!(std::io::stdout(), "{}", server.url()).context("cannot print the URL")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

fn write(file: &Path, kubeconfig: &str) -> anyhow::Result<()> {
    std::fs::write(file, kubeconfig).with_context(|| format!("cannot write {}", file.display()))
}
