//! How to reach the agent, and how to print its answer.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

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
    /// How to print the answer.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    pub output: OutputFormat,
    /// How to reach the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
}

/// `--output`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people.
    #[default]
    Table,
    /// The same with more columns.
    Wide,
    /// The agent's answer, for programs.
    Json,
    /// The same as YAML.
    Yaml,
}

/// Flags of queries whose answer has no further columns.
#[derive(Debug, Clone, Args)]
pub struct PlainQueryFlags {
    /// How to print the answer.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = PlainFormat::Table)]
    pub output: PlainFormat,
    /// How to reach the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
}

/// `--output` where there are no further columns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum PlainFormat {
    /// For people.
    #[default]
    Table,
    /// The agent's answer, for programs.
    Json,
    /// The same as YAML.
    Yaml,
}

/// `--output` of `timeline`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum TimelineFormat {
    /// Bars for a terminal, or a list.
    #[default]
    Table,
    /// The same with each attempt on its own line and its duration, or with more columns of the list.
    Wide,
    /// The agent's answer, for programs.
    Json,
    /// The same as YAML.
    Yaml,
    /// A picture for a browser; point at a bar to read its times and its failure.
    Svg,
}

/// `--output` of `gc graph`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum GraphFormat {
    /// For graphviz.
    #[default]
    Dot,
    /// A picture for a browser.
    Svg,
    /// The agent's answer, for programs.
    Json,
    /// The same as YAML.
    Yaml,
}

// === impl PlainFormat ===

impl From<PlainFormat> for OutputFormat {
    fn from(format: PlainFormat) -> Self {
        match format {
            PlainFormat::Table => Self::Table,
            PlainFormat::Json => Self::Json,
            PlainFormat::Yaml => Self::Yaml,
        }
    }
}
