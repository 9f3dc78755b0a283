//! Logs: text on a terminal, JSON otherwise.

use std::io::{self, IsTerminal as _, Write};

use tracing_subscriber::EnvFilter;

/// What is logged unless `RUST_LOG` says otherwise. The clients' own layers repeat what is reported here with its pod.
const DEFAULT: &str = "info,kube_client=off,tower=warn,hyper=warn,h2=warn";

/// Standard error. A log that nobody takes must not end what it tells of.
struct Stderr;

/// Starts logging to standard error.
pub fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Stderr)
        .log_internal_errors(false);
    if io::stderr().is_terminal() {
        builder.with_target(false).init();
    } else {
        builder.json().flatten_event(true).with_span_list(false).init();
    }
}

// === impl Stderr ===

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(line).ok();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
