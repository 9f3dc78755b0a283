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
    ops::{colors, logging, output::Output},
    words::without_error_codes,
};
use serde::Serialize;

/// sysexits.h `EX_USAGE`.
pub const USAGE: u8 = 64;
/// sysexits.h `EX_CONFIG`.
pub const CONFIGURATION: u8 = 78;

/// Prints an answer. The verdicts of a text are colored, if standard output may have colors.
pub fn print_formatted<F>(output: &Output<F>, text: &str, code: u8) -> ExitCode {
    print_raw(&formatted(output, text), code)
}

/// Prints a value of this program.
pub fn print_value<T: Serialize + ?Sized>(output: &Output<impl Fn(&T) -> String>, value: &T, code: u8) -> ExitCode {
    match output.format(value) {
        Ok(text) => print_formatted(output, &text, code),
        Err(error) => failed(1, &error.to_string()),
    }
}

pub fn formatted<F>(output: &Output<F>, text: &str) -> String {
    let escaped = foreign::escape_lines(text.trim_end());
    let escaped = match output.is_text() {
        true => without_error_codes(&escaped),
        false => escaped,
    };
    if output.is_text() && colors::are_allowed(&io::stdout()) {
        colors::paint(&escaped)
    } else {
        escaped
    }
}

pub fn print(text: &str, code: u8) -> ExitCode {
    print_raw(&foreign::escape_lines(text.trim_end()), code)
}

/// Prints a text whose control characters are escaped. A closed pipe is no error.
fn print_raw(text: &str, code: u8) -> ExitCode {
    match write_line(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => failed(1, &format!("standard output: {error}")),
        _ => ExitCode::from(code),
    }
}

pub fn write_line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush())
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
    } else if any(ProblemKind::Configuration) || any(ProblemKind::Absent) || any(ProblemKind::NotGiven) {
        CONFIGURATION
    } else {
        1
    })
}

/// Prints an error of the command line, or the help or version that was asked for.
pub fn print_clap_error(error: &clap::Error) {
    // The write fails without a terminal.
    if error.use_stderr() {
        // It quotes arguments unescaped. After the styles are removed, all control characters are untrusted.
        let text = without_styles(&error.render().ansi().to_string());
        write!(io::stderr(), "{}", foreign::escape_lines(&text)).ok();
    } else {
        error.print().ok();
    }
}

/// Removes colors and other styles. Nothing else is removed: a reader has to see what an argument contains.
fn without_styles(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let after = part.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == ';');
        match after.strip_prefix('m') {
            Some(text) => plain += text,
            None => plain.extend(["\u{1b}[", part]),
        }
    }
    plain
}

pub fn print_error(why: &str) {
    let why = without_error_codes(why);
    let why = ForeignText::new(&why);
    // An error here cannot be reported.
    writeln!(io::stderr(), "pod-teardown: {why}").ok();
}
