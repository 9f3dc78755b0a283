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
/// The priority `err` of syslog; smaller numbers are worse.
const ERR: u8 = 3;

/// How well a line explains the end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// An error, which the process may have survived.
    Error,
    /// The process ends because of it.
    Fatal,
}

/// The last fatal line, or else the last error, of the last runs of the unit. `entries`: oldest first.
pub fn last_error(entries: &[Entry], runs: usize) -> Option<String> {
    let entries = of_last_runs(entries, runs);
    let ranked = entries.iter().enumerate().filter_map(|(at, entry)| {
        let (rank, text) = rank(entry)?;
        Some((rank, at, text))
    });
    let (worst, at, text) = ranked.max_by_key(|(rank, at, _)| (*rank, *at))?;
    let line = plain(&with_continuation(text, &entries[at + 1..]));
    // The error directly before a fatal one may be its cause: an expired certificate, and then a missing bootstrap-kubelet.conf.
    let cause = at.checked_sub(1).and_then(|before| rank(&entries[before]));
    let line = match cause.filter(|_| worst == Rank::Fatal) {
        Some((Rank::Error, cause)) => format!("{}; {line}", plain(cause)),
        _ => line,
    };
    Some(ForeignText::within(&line, MAX_LINE).into())
}

fn of_last_runs(entries: &[Entry], runs: usize) -> &[Entry] {
    let mut begin = entries.len();
    for _ in 0..runs {
        let older = &entries[..begin];
        let Some(last) = older.last() else { break };
        begin = older
            .iter()
            .rposition(|entry| entry.run != last.run)
            .map_or(0, |before| before + 1);
    }
    &entries[begin..]
}

/// How well the line explains, and the line without klog's header: its time and PID differ at each run.
fn rank(entry: &Entry) -> Option<(Rank, &str)> {
    let line = entry.message.trim_end();
    if let Some((severity, text)) = klog(line) {
        let is_last = severity == 'F' || text.starts_with("\"command failed\"");
        return match severity {
            'E' | 'F' if is_last => Some((Rank::Fatal, text)),
            'E' => Some((Rank::Error, text)),
            _ => None,
        };
    }
    if line.starts_with("{\"ts\":") {
        let fields: Value = serde_json::from_str(line).ok()?;
        // Only messages have a verbosity (k8s.io/component-base: logs/json).
        return match (fields.get("v"), &fields["msg"]) {
            (Some(_), _) => None,
            (None, Value::String(message)) if message == "command failed" => Some((Rank::Fatal, line)),
            (None, _) => Some((Rank::Error, line)),
        };
    }
    let begins = |beginnings: &[&str]| beginnings.iter().any(|it| line.starts_with(it));
    let has_level = |level: &str| line.starts_with("time=") && line.contains(level);
    if begins(&["Error: ", "panic: ", "fatal error: "]) || has_level(" level=fatal ") {
        Some((Rank::Fatal, line))
    } else if has_level(" level=error ") || entry.priority <= ERR && !line.is_empty() {
        Some((Rank::Error, line))
    } else {
        None
    }
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

/// Message and error of a structured line; any other line as it is.
fn plain(line: &str) -> String {
    if let Ok(fields) = serde_json::from_str::<Value>(line) {
        let text = |name: &str| fields[name].as_str().map(str::to_owned);
        return joined(text("msg").unwrap_or_default(), text("err"), "");
    }
    if line.starts_with("time=") {
        let message = line.split_once(" msg=").and_then(|(_, rest)| quoted(rest));
        return message.map_or_else(|| line.to_owned(), |(message, _)| message);
    }
    match quoted(line) {
        Some((message, rest)) => {
            let error = rest.split_once(" err=").and_then(|(_, rest)| quoted(rest));
            joined(message, error.map(|(error, _)| error), rest)
        }
        None => line.strip_prefix("Error: ").unwrap_or(line).to_owned(),
    }
}

/// The message and its error, or the rest of the line. Some messages say nothing.
fn joined(message: String, error: Option<String>, rest: &str) -> String {
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
