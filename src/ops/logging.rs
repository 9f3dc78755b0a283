//! Logs: text on a terminal, JSON otherwise.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// What is logged unless `RUST_LOG` says otherwise. The clients' own layers repeat what is reported here with its pod.
const DEFAULT: &str = "info,kube_client=off,tower=warn,hyper=warn,h2=warn";

/// Starts logging to standard error.
pub fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        builder.with_target(false).init();
    } else {
        builder.json().flatten_event(true).with_span_list(false).init();
    }
}
