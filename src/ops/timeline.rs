//! Draws a teardown trace as bars over time, and lists traces. Pure.

mod svg;

use std::fmt::Write as _;

use jiff::Timestamp;

pub use self::svg::svg;
use super::output::{cell, table, wide_cell};
use crate::{
    clock::between,
    model::trace::{Span, Stage, Step, Trace},
    words::{age, seconds},
};

/// Width of the bars, in columns.
const WIDTH: usize = 48;

/// Equal spans of several attempts, on one line.
#[derive(Debug)]
struct Row<'a> {
    step: Step,
    what: &'a str,
    failure: Option<&'a str>,
    /// Start and end in milliseconds; a span in progress has no end.
    times: Vec<(u64, Option<u64>)>,
}

/// Draws one trace for a terminal. `is_wide`: each attempt has its own line.
pub fn text(trace: &Trace, is_wide: bool) -> String {
    let (total, grace_end) = scale(trace);
    let what_width = trace.spans.iter().map(|span| span.what.chars().count()).max();
    let what_width = what_width.unwrap_or(0);
    let mut out = head(trace);
    for row in rows(&trace.spans, is_wide) {
        let (step, what) = (row.step, row.what);
        let failure = row.failure.map_or_else(String::new, |why| format!("  ✗ {why}"));
        let (line, times) = (row.line(total, grace_end), row.times_text());
        // Writing to a String cannot fail.
        let _ = writeln!(out, "  {step:8} {what:what_width$} │{line}│ {times}{failure}");
    }
    if let Some(end) = grace_end {
        let mut line = [' '; WIDTH];
        line[column_of(end, total)] = '┊';
        let (line, end) = (String::from_iter(line), precise(end));
        let _ = writeln!(
            out,
            "  {:8} {:what_width$} │{line}│ {end:>7} grace period expires",
            "grace", ""
        );
    }
    for failure in &trace.blocked {
        let _ = writeln!(out, "  waits for: {failure}");
    }
    out
}

/// Formats the list, the latest termination last. `namespace` selects those of one namespace.
pub fn list(traces: &[Trace], namespace: Option<&str>, is_wide: bool, now: Timestamp) -> String {
    let selected = |trace: &&Trace| namespace.is_none_or(|namespace| trace.namespace == namespace);
    let mut traces: Vec<&Trace> = traces.iter().filter(selected).collect();
    if traces.is_empty() {
        return "No termination is known; the agent remembers the last 256 since its start.\n".to_owned();
    }
    traces.sort_by_key(|trace| trace.began);
    let row = |trace: &Trace| {
        [
            cell("NAMESPACE", &trace.namespace),
            cell("NAME", &trace.name),
            cell("STATE", state(trace)),
            cell("DURATION", precise(trace.elapsed_ms)),
            cell("GRACE", format!("{}s", trace.grace_seconds)),
            cell("AGE", age(between(trace.began, now))),
            wide_cell("ATTEMPTS", trace.attempts),
            wide_cell("PHASE", trace.phase.as_deref().unwrap_or("-")),
            wide_cell("UID", &trace.uid),
            wide_cell("CAUSE", trace.cause),
        ]
    };
    table(traces.into_iter().map(row), is_wide)
}

fn state(trace: &Trace) -> &'static str {
    match trace.stage {
        _ if trace.waits_for_deletion => "awaiting-deletion",
        Stage::Terminating => "terminating",
        Stage::Terminated => "terminated",
        Stage::Deleted => "deleted",
        Stage::Finished => "finished",
    }
}

/// The pod, and its state as a whole: two lines.
fn head(trace: &Trace) -> String {
    let (namespace, name, uid) = (&trace.namespace, &trace.name, &trace.uid);
    let (elapsed, total) = (precise(trace.elapsed_ms), trace.grace_seconds);
    let state = match trace.stage {
        _ if trace.waits_for_deletion => {
            format!("terminated{} in {elapsed}, awaits its deletion", trace.phase_suffix())
        }
        Stage::Finished => format!("finished in {elapsed}"),
        Stage::Deleted => format!("deleted; cleanup in progress for {elapsed}"),
        Stage::Terminating | Stage::Terminated => format!("in progress for {elapsed}"),
    };
    let begun = trace.awaits_grace_period().then_some(" (not begun)");
    let grace = begun.unwrap_or_default();
    let (begun, attempts) = trace.start_and_attempts();
    format!("{namespace}/{name}  uid {uid}\n{begun}, grace {total}s{grace}, {state}, {attempts}\n")
}

/// Length of the time scale in milliseconds, and the end of the grace period, if it lies on it.
fn scale(trace: &Trace) -> (u64, Option<u64>) {
    let ends = trace.spans.iter().filter_map(|span| span.end_ms);
    let total = ends.chain([trace.elapsed_ms]).max().unwrap_or(0).max(1);
    (total, trace.grace_end_ms.filter(|end| *end <= total))
}

/// The rows of these spans. `is_single`: a row for each span.
fn rows(spans: &[Span], is_single: bool) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for span in spans {
        let (step, what, failure) = (span.step, span.what.as_str(), span.failure.as_deref());
        let time = (span.start_ms, span.end_ms);
        let is_same_row = |row: &&mut Row<'_>| !is_single && (row.step, row.what, row.failure) == (step, what, failure);
        match rows.iter_mut().find(is_same_row) {
            Some(row) => row.times.push(time),
            None => rows.push(Row {
                step,
                what,
                failure,
                times: vec![time],
            }),
        }
    }
    rows
}

/// The column of a time, in milliseconds of the total.
fn column_of(ms: u64, total: u64) -> usize {
    let column = ms * WIDTH as u64 / total;
    usize::try_from(column).unwrap_or(WIDTH).min(WIDTH - 1)
}

/// Formats milliseconds, below a minute with two decimals.
fn precise(ms: u64) -> String {
    if ms < 60_000 {
        format!("{}.{:02}s", ms / 1000, ms % 1000 / 10)
    } else {
        seconds(ms)
    }
}

// === impl Row ===

impl Row<'_> {
    /// Draws the bars, with dots between them, and the end of the grace period where there is no bar. A short span has a column.
    fn line(&self, total: u64, grace_end: Option<u64>) -> String {
        let columns = |&(start, end): &(u64, Option<u64>)| {
            // A bar ends before the column of its end.
            let last = column_of(end.unwrap_or(total).saturating_sub(1).max(start), total);
            (column_of(start, total), last)
        };
        let bars: Vec<_> = self.times.iter().map(columns).collect();
        let first = bars.iter().map(|(first, _)| *first).min().unwrap_or(0);
        let last = bars.iter().map(|(_, last)| *last).max().unwrap_or(0);
        let grace_column = grace_end.map(|end| column_of(end, total));
        let letter = |column| match column {
            _ if bars.iter().any(|(first, last)| (*first..=*last).contains(&column)) => '█',
            _ if grace_column == Some(column) => '┊',
            _ if (first..last).contains(&column) => '·',
            _ => ' ',
        };
        (0..WIDTH).map(letter).collect()
    }

    /// Formats the first start, the duration of all spans together and their number.
    fn times_text(&self) -> String {
        let start = precise(self.times[0].0);
        let durations = self
            .times
            .iter()
            .map(|(start, end)| Some((*end)?.saturating_sub(*start)));
        let duration = match durations.sum::<Option<u64>>() {
            None => "…".to_owned(),
            Some(ms @ 0..1000) => format!("+{ms} ms"),
            Some(ms) => format!("+{}", precise(ms)),
        };
        let repetitions = match self.times.len() {
            1 => String::new(),
            times => format!("  ×{times}"),
        };
        format!("{start:>7} {duration}{repetitions}")
    }
}

#[cfg(test)]
mod tests;
