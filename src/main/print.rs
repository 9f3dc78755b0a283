//! Prints results and errors.

use std::{
    io::{self, Write as _},
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::bail;
use pod_teardown::{
    cli::OutputFormat,
    model::{
        foreign::{self, ForeignText},
        problem::Problem,
    },
    ops::{
        check::{FAILURE, USAGE, exit_code, most_severe},
        logging, output,
    },
    words::without_error_codes,
};
use serde::Serialize;

/// Prints a value of this program. `text` also gets whether `-o wide` is given.
pub fn print_value<T: Serialize>(
    value: &T,
    format: OutputFormat,
    text: impl FnOnce(&T, bool) -> String,
) -> anyhow::Result<()> {
    match format {
        OutputFormat::Json => print(&output::json(value)?),
        OutputFormat::Table | OutputFormat::Wide => print_text(&text(value, format == OutputFormat::Wide)),
    }
}

/// Prints a text without the codes of the system's errors.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    print(&without_error_codes(text))
}

/// Prints a text, and escapes its control characters. A closed pipe is no error.
pub fn print(text: &str) -> anyhow::Result<()> {
    let text = foreign::escape_lines(text.trim_end());
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => bail!("standard output: {error}"),
        _ => Ok(()),
    }
}

/// Prints the problems after the log, for a second at most: standard error may be a pipe without a reader.
pub fn misconfigured(problems: &[Problem]) -> ExitCode {
    let errors: Vec<_> = problems.iter().map(Problem::to_string).collect();
    let (printed, all_printed) = mpsc::channel();
    logging::flush();
    thread::spawn(move || {
        errors.iter().for_each(|error| print_error(error));
        printed.send(()).ok();
    });
    all_printed.recv_timeout(Duration::from_secs(1)).ok();
    let codes: Vec<u8> = problems.iter().map(|problem| exit_code(problem.kind)).collect();
    ExitCode::from(most_severe(&codes).max(FAILURE))
}

/// Prints an error of the command line, or the help or version that was asked for. Returns the exit code.
pub fn print_clap_error(error: &clap::Error) -> u8 {
    // The write fails without a terminal.
    if error.use_stderr() {
        // It quotes arguments unescaped. There are no styles, so that all control characters are untrusted.
        let text = error.render().ansi().to_string();
        write!(io::stderr(), "{}", foreign::escape_lines(&text)).ok();
        USAGE
    } else {
        error.print().ok();
        0
    }
}

pub fn print_error(why: &str) {
    let why = without_error_codes(why);
    let why = ForeignText::new(&why);
    // An error here cannot be reported.
    writeln!(io::stderr(), "pod-teardown: {why}").ok();
}
