//! How to reach the agent, and how to print its answer.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::node::systemd::environment_file;

/// Default of `--socket`.
pub const DEFAULT_SOCKET: &str = "/run/pod-teardown/pod-teardown.sock";
/// The variable of `--socket`.
const SOCKET_VARIABLE: &str = "POD_TEARDOWN_SOCKET";

/// `--socket`.
#[derive(Debug, Clone, Args)]
pub struct SocketFlag {
    /// Admin socket of the running agent. The default is POD_TEARDOWN_SOCKET in /etc/default/pod-teardown, if it is set there.
    #[arg(
        long,
        env = SOCKET_VARIABLE,
        value_name = "PATH",
        default_value_os_t = socket_of_service(Path::new(environment_file::OF_SERVICE))
    )]
    pub socket: PathBuf,
}

/// The socket in the settings of the service. The kubelet's drop-in needs it, and does not give all settings to the kubelet.
fn socket_of_service(settings: &Path) -> PathBuf {
    let settings = environment_file::read(settings).unwrap_or_default();
    let is_moved = |(name, path): &(String, String)| name == SOCKET_VARIABLE && !path.is_empty();
    let moved = settings.into_iter().rfind(is_moved);
    moved.map_or_else(|| DEFAULT_SOCKET.into(), |(_, path)| path.into())
}

/// Flags of queries.
#[derive(Debug, Clone, Args)]
pub struct QueryFlags {
    /// How to print the answer.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    pub output: OutputFormat,
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
}

/// `--output` of a timeline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum TimelineFormat {
    /// Bars for a terminal, or a list.
    #[default]
    Table,
    /// The same with each attempt on its own line, or with more columns of the list.
    Wide,
    /// The agent's answer, for programs.
    Json,
    /// A picture for a browser; point at a bar to read its times and its failure.
    Svg,
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn moved_socket_is_found_in_the_settings_of_the_service() {
        let settings = tempfile::NamedTempFile::new().unwrap();
        for (text, socket) in [
            ("POD_TEARDOWN_SOCKET=/old\nPOD_TEARDOWN_SOCKET=\"/a b\"\n", "/a b"),
            ("#POD_TEARDOWN_SOCKET=/a\nPOD_TEARDOWN_SOCKET=\n", DEFAULT_SOCKET),
        ] {
            fs::write(&settings, text).unwrap();
            assert_eq!(socket_of_service(settings.path()), Path::new(socket), "{text}");
        }
        assert_eq!(socket_of_service(Path::new("/absent")), Path::new(DEFAULT_SOCKET));
    }
}
