//! The line that says why a kubelet does not work. Pure.
//!
//! The kubelet writes all its lines to standard error, so that their priority in the journal says nothing. klog marks errors with
//! `E` and fatal ones with `F` (k8s.io/klog: klog.go formatHeader); a kubelet that cannot start writes `"command failed"` or
//! `Error:` (k8s.io/component-base: cli/run.go).

use serde_json::Value;

use super::journal::Entry;
use crate::model::foreign::ForeignText;

/// Longest line in bytes.
const MAX_LINE: usize = 300;

/// A line that explains the end of a process.
struct ErrorLine<'a> {
    /// The process ends because of it. It may have survived any other error.
    is_fatal: bool,
    /// Without klog's header: its time and PID differ at each run.
    text: &'a str,
}

/// The last fatal line, or else the last error, of the last runs of the unit. `entries`: oldest first.
pub fn last_error(entries: &[Entry], runs: usize) -> Option<String> {
    let entries = of_last_runs(entries, runs);
    let numbered = entries.iter().enumerate();
    let errors = numbered.filter_map(|(at, entry)| Some((at, error_in(&entry.message)?)));
    let (at, error) = errors.max_by_key(|(at, error)| (error.is_fatal, *at))?;
    let line = plain(&with_continuation(error.text, &entries[at + 1..]));
    // The error directly before a fatal one may be its cause: an expired certificate, and then a missing bootstrap-kubelet.conf.
    let before = at.checked_sub(1).filter(|_| error.is_fatal);
    let line = match before.and_then(|before| error_in(&entries[before].message)) {
        Some(ErrorLine { is_fatal: false, text }) => format!("{}; {line}", plain(text)),
        _ => line,
    };
    Some(ForeignText::within(&line, MAX_LINE).into())
}

fn of_last_runs(entries: &[Entry], runs: usize) -> &[Entry] {
    let last_runs = entries.chunk_by(|a, b| a.run == b.run).rev().take(runs);
    let length: usize = last_runs.map(<[Entry]>::len).sum();
    &entries[entries.len() - length..]
}

/// The error in this line, if it is one.
fn error_in(line: &str) -> Option<ErrorLine<'_>> {
    let line = line.trim_end();
    let has_level = |level: &str| line.starts_with("time=") && line.contains(level);
    let (is_fatal, text) = if let Some((severity, text)) = klog(line) {
        let is_last = severity == 'F' || text.starts_with("\"command failed\"");
        (is_last, Some(text).filter(|_| matches!(severity, 'E' | 'F'))?)
    } else if line.starts_with("{\"ts\":") {
        let fields: Value = serde_json::from_str(line).ok()?;
        // Only messages have a verbosity (k8s.io/component-base: logs/json).
        let is_error = fields.get("v").is_none();
        (fields["msg"] == "command failed", Some(line).filter(|_| is_error)?)
    } else if has_level(" level=error ") {
        (false, line)
    } else {
        let mut marks = ["Error: ", "panic: ", "fatal error: "].iter();
        let is_fatal = marks.any(|mark| line.starts_with(mark));
        (true, Some(line).filter(|_| is_fatal || has_level(" level=fatal "))?)
    };
    Some(ErrorLine { is_fatal, text })
}

/// Severity and text of a line with klog's header, such as `E1129 00:41:02.123456   4711 run.go:72] "command failed"`.
fn klog(line: &str) -> Option<(char, &str)> {
    let severity = line.chars().next().filter(|letter| "IWEF".contains(*letter))?;
    let (date, _) = line.get(1..)?.split_once(' ')?;
    let is_date = date.len() == 4 && date.bytes().all(|byte| byte.is_ascii_digit());
    let (_, text) = line.split_once("] ").filter(|_| is_date)?;
    Some((severity, text))
}

/// A value of several lines ends with ` >` (k8s.io/klog: internal/serialize).
fn with_continuation(text: &str, newer: &[Entry]) -> String {
    let mut whole = text.to_owned();
    if text.ends_with("=<") {
        whole.truncate(text.len() - 1);
        let lines = newer.iter().map(|entry| entry.message.trim());
        let value: Vec<_> = lines.take_while(|line| !line.starts_with('>')).collect();
        whole += &Value::from(value.join(" ")).to_string();
    }
    whole
}

/// Message and error of a structured line; any other line as it is. Some messages say nothing.
fn plain(line: &str) -> String {
    let (message, error, rest) = if let Ok(fields) = serde_json::from_str::<Value>(line) {
        let text = |name: &str| fields[name].as_str().map(str::to_owned);
        (text("msg").unwrap_or_default(), text("err"), "")
    } else if line.starts_with("time=") {
        let message = line.split_once(" msg=").and_then(|(_, rest)| quoted(rest));
        let message = message.map_or_else(|| line.to_owned(), |(message, _)| message);
        (message, None, "")
    } else if let Some((message, rest)) = quoted(line) {
        let error = rest.split_once(" err=").and_then(|(_, rest)| quoted(rest));
        (message, error.map(|(error, _)| error), rest)
    } else {
        (line.strip_prefix("Error: ").unwrap_or(line).to_owned(), None, "")
    };
    match error {
        Some(error) if ["command failed", "Unhandled Error"].contains(&&*message) => error,
        Some(error) => format!("{message}: {error}"),
        None => message + rest,
    }
}

/// The text in double quotes at the beginning, and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let inner = text.strip_prefix('"')?;
    let mut is_escaped = false;
    let end = inner.find(|letter| {
        let ends = letter == '"' && !is_escaped;
        is_escaped = letter == '\\' && !is_escaped;
        ends
    })?;
    let (whole, rest) = text.split_at(end + 2);
    // Go has some escapes that JSON has not.
    let unquoted = serde_json::from_str(whole).unwrap_or_else(|_| inner[..end].to_owned());
    Some((unquoted, rest))
}

#[cfg(test)]
mod tests;
