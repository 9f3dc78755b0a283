//! Draws a teardown trace as bars over time. Pure.

mod list;
mod svg;

use std::fmt::Write as _;

pub use self::{list::list, svg::svg};

use crate::{
    model::{
        termination::GraceStart,
        trace::{Span, Stage, Step, Trace},
    },
    words::seconds,
};

/// Below this duration, in milliseconds, the start and the end of a span look the same.
const SHORT: u64 = 100;
/// Shorter times before the first step, in milliseconds, are not named.
const MIN_IDLE_MS: u64 = 5000;
/// Width of the bars, in columns.
const WIDTH: u64 = 48;
/// Fractions of a column that a terminal can draw.
const EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// Draws one trace for a terminal. `is_wide`: each attempt has its own line, with its duration.
pub fn text(trace: &Trace, is_wide: bool) -> String {
    let mut out = head(trace).join("\n") + "\n";
    let (total, grace_end) = (total_ms(trace), grace_end_on_scale(trace));
    let grace_column = grace_end.map(|end| grace_end_column(end, total));
    let what_width = trace
        .spans
        .iter()
        .map(|span| span.what.chars().count())
        .max()
        .unwrap_or(0);
    for row in if is_wide {
        single_rows(&trace.spans)
    } else {
        rows(&trace.spans)
    } {
        let bars = bars(&row.times, total);
        let drawn = with_grace_end(&bars, grace_column);
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "  {:8} {:what_width$} │{}│ {}{}",
            row.step,
            row.what,
            drawn,
            if is_wide { row.duration_text() } else { row.times_text() },
            row.failure.map(|why| format!("  ✗ {why}")).unwrap_or_default(),
        );
    }
    if let Some(end) = grace_end {
        let line = with_grace_end(&" ".repeat(column_count(WIDTH)), grace_column);
        let _ = writeln!(out, "  {GRACE:8} {:what_width$} │{line}│ {}", "", grace_text(end));
    }
    for failure in &trace.blocked {
        let _ = writeln!(out, "  waits for: {failure}");
    }
    out
}

/// Label of the line at the end of the grace period.
const GRACE: &str = "grace";

/// The end of the grace period, if it lies on the time scale.
fn grace_end_on_scale(trace: &Trace) -> Option<u64> {
    trace.grace_end_ms.filter(|end| *end <= total_ms(trace))
}

fn grace_text(end: u64) -> String {
    format!("{:>7}   grace period expires", precise(end))
}

fn grace_end_column(end: u64, total: u64) -> usize {
    column_count((end * WIDTH / total).min(WIDTH - 1))
}

/// Draws the end of the grace period where the line has no bar.
fn with_grace_end(line: &str, column: Option<usize>) -> String {
    let mark = |(index, letter)| match letter {
        ' ' | '·' if Some(index) == column => '┊',
        letter => letter,
    };
    line.chars().enumerate().map(mark).collect()
}

/// Whether nothing more is added to these traces, except after a deletion.
pub fn are_finished(traces: &[Trace]) -> bool {
    traces
        .iter()
        .all(|trace| trace.waits_for_deletion || trace.stage == Stage::Finished)
}

/// The pod, and its state as a whole.
fn head(trace: &Trace) -> [String; 2] {
    let state = match trace.stage {
        _ if trace.waits_for_deletion => format!(
            "terminated{} in {}, awaits its deletion",
            trace.phase_suffix(),
            precise(trace.elapsed_ms)
        ),
        Stage::Finished => format!("finished in {}", precise(trace.elapsed_ms)),
        Stage::Deleted => format!("deleted; cleanup in progress for {}", precise(trace.elapsed_ms)),
        Stage::Terminating | Stage::Terminated => format!("in progress for {}", precise(trace.elapsed_ms)),
    };
    let (begun, attempts) = trace.start_and_attempts();
    [
        format!("{}/{}  uid {}", trace.namespace, trace.name, trace.uid),
        format!(
            "{begun}, grace {}s{}, {state}, {attempts}{}",
            trace.grace_seconds,
            match trace.grace_counted_from {
                GraceStart::DeleteRequest =>
                    format!(" ({} left, as the kubelet counts it)", seconds(trace.grace_left_ms)),
                _ if trace.awaits_grace_period() => " (not begun)".to_owned(),
                GraceStart::NotBegun | GraceStart::Termination => String::new(),
            },
            idle_before_first_step(trace)
        ),
    ]
}

/// The time before the first step, such as the time until a takeover.
fn idle_before_first_step(trace: &Trace) -> String {
    let first = trace.spans.iter().map(|span| span.start_ms).min();
    let idle = first.filter(|first| trace.resumed.is_none() && *first >= MIN_IDLE_MS);
    idle.map_or_else(String::new, |idle| {
        format!(", its first step began after {}", precise(idle))
    })
}

/// Length of the time scale, in milliseconds.
fn total_ms(trace: &Trace) -> u64 {
    let ends = trace.spans.iter().filter_map(|span| span.end_ms);
    ends.chain([trace.elapsed_ms]).max().unwrap_or(0).max(1)
}

/// Equal spans of several attempts, on one line.
struct Row<'a> {
    step: Step,
    what: &'a str,
    failure: Option<&'a str>,
    times: Vec<(u64, Option<u64>)>,
}

fn rows(spans: &[Span]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for span in spans {
        let (step, what, failure) = (span.step, span.what.as_str(), span.failure.as_deref());
        let time = (span.start_ms, span.end_ms);
        let is_same_row = |row: &&mut Row<'_>| (row.step, row.what, row.failure) == (step, what, failure);
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

/// A row for each span.
fn single_rows(spans: &[Span]) -> Vec<Row<'_>> {
    spans.chunks(1).flat_map(rows).collect()
}

// === impl Row ===

impl Row<'_> {
    /// Formats start, end and duration of a single span.
    fn duration_text(&self) -> String {
        let (start, end) = self.times[0];
        match end {
            None => format!("{:>7} → …", precise(start)),
            Some(end) => {
                let duration = end.saturating_sub(start);
                let duration = match duration {
                    0..1000 => format!("{duration} ms"),
                    _ => precise(duration),
                };
                format!("{:>7} → {:>7}  {duration:>7}", precise(start), precise(end))
            }
        }
    }

    /// Formats the first start, the last end and the number of spans. Where both would look the same, and for a single short
    /// span, the duration stands instead of the end: that of all spans together.
    fn times_text(&self) -> String {
        let ends: Option<Vec<u64>> = self.times.iter().map(|(_, end)| *end).collect();
        let end = ends.and_then(|ends| ends.into_iter().max());
        let repetitions = match self.times.len() {
            1 => String::new(),
            times => format!("  ×{times}"),
        };
        let start = self.times[0].0;
        let is_short = |end: u64| self.times.len() == 1 && end.saturating_sub(start) < SHORT;
        if let Some(end) = end
            && (is_short(end) || precise(start) == precise(end))
        {
            let durations = self
                .times
                .iter()
                .map(|(start, end)| end.unwrap_or(*start).saturating_sub(*start));
            let duration = match durations.sum() {
                ms @ 0..1000 => format!("{ms} ms"),
                ms => precise(ms),
            };
            return format!("{:>7} +{duration}{repetitions}", precise(start));
        }
        format!(
            "{:>7} → {}{repetitions}",
            precise(start),
            end.map_or_else(|| "…".to_owned(), precise)
        )
    }
}

/// Draws several bars on one line, with dots between them.
fn bars(times: &[(u64, Option<u64>)], total: u64) -> String {
    let mut line = Vec::new();
    for (start, end) in times {
        let next: Vec<char> = bar(*start, end.unwrap_or(total), total).chars().collect();
        let end_column = line.iter().rposition(|c| *c != ' ').map_or(next.len(), |last| last + 1);
        let first_column = next.iter().position(|c| *c != ' ').unwrap_or(0);
        line.resize(next.len(), ' ');
        for (column, (current, added)) in line.iter_mut().zip(next).enumerate() {
            if *current == ' ' {
                *current = if (end_column..first_column).contains(&column) {
                    '·'
                } else {
                    added
                };
            }
        }
    }
    line.into_iter().collect()
}

/// Draws a bar from `start` to `end` of `total`. It is never empty: short spans stay visible.
fn bar(start: u64, end: u64, total: u64) -> String {
    let column = (start * WIDTH / total).min(WIDTH - 1);
    let until = (end * WIDTH * 8 / total).max(column * 8 + 1);
    let mut bar = " ".repeat(column_count(column)) + &"█".repeat(column_count(until / 8 - column));
    bar.extend(column_count(until % 8).checked_sub(1).map(|index| EIGHTHS[index]));
    let length = bar.chars().count();
    bar + &" ".repeat(column_count(WIDTH).saturating_sub(length))
}

fn column_count(columns: u64) -> usize {
    usize::try_from(columns).unwrap_or(0)
}

/// Formats milliseconds, below a minute with two decimals.
fn precise(ms: u64) -> String {
    if ms < 60_000 {
        format!("{}.{:02}s", ms / 1000, ms % 1000 / 10)
    } else {
        seconds(ms)
    }
}

#[cfg(test)]
mod tests;
