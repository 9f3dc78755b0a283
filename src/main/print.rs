//! Prints results and errors.

use std::{
    io::{self, Write as _},
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};

use pod_teardown::{
    model::{
        foreign::{self, ForeignText},
        problem::{Problem, ProblemKind},
    },
    ops::{logging, output},
    words::without_error_codes,
};
use serde::Serialize;

pub use pod_teardown::ops::check::{CONFIGURATION, USAGE};

/// Prints a value of this program, as JSON or as text.
pub fn print_value<T: Serialize + ?Sized>(
    value: &T,
    is_json: bool,
    text: impl FnOnce(&T) -> String,
    code: u8,
) -> ExitCode {
    match is_json.then(|| output::json(value)) {
        None => print_text(&text(value), code),
        Some(Ok(json)) => print(&json, code),
        Some(Err(error)) => failed(1, &error.to_string()),
    }
}

/// Prints a text without the codes of the system's errors.
pub fn print_text(text: &str, code: u8) -> ExitCode {
    print(&without_error_codes(text), code)
}

/// Prints a text, and escapes its control characters. A closed pipe is no error.
pub fn print(text: &str, code: u8) -> ExitCode {
    let text = foreign::escape_lines(text.trim_end());
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => failed(1, &format!("standard output: {error}")),
        _ => ExitCode::from(code),
    }
}

pub fn failed(code: u8, why: &str) -> ExitCode {
    print_error(why);
    ExitCode::from(code)
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
    let any = |kind| problems.iter().any(|problem| problem.kind == kind);
    ExitCode::from(if any(ProblemKind::Usage) {
        USAGE
    } else if any(ProblemKind::Configuration) || any(ProblemKind::Absent) {
        CONFIGURATION
    } else {
        1
    })
}

/// Prints an error of the command line, or the help or version that was asked for.
pub fn print_clap_error(error: &clap::Error) {
    // The write fails without a terminal.
    if error.use_stderr() {
        // It quotes arguments unescaped. There are no styles, so that all control characters are untrusted.
        let text = error.render().ansi().to_string();
        write!(io::stderr(), "{}", foreign::escape_lines(&text)).ok();
    } else {
        error.print().ok();
    }
}

pub fn print_error(why: &str) {
    let why = without_error_codes(why);
    let why = ForeignText::new(&why);
    // An error here cannot be reported.
    writeln!(io::stderr(), "pod-teardown: {why}").ok();
}
