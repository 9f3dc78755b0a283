//! How to reach the agent, and how to print its answer.

use std::path::PathBuf;

use clap::Args;

/// Default of `--socket`.
pub const DEFAULT_SOCKET: &str = "/run/pod-teardown/pod-teardown.sock";

/// `--socket`.
#[derive(Debug, Clone, Args)]
pub struct SocketFlag {
    /// Admin socket of the running agent.
    #[arg(long, env = "POD_TEARDOWN_SOCKET", value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
}

/// Flags of queries.
#[derive(Debug, Clone, Args)]
pub struct QueryFlags {
    /// How to reach the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
