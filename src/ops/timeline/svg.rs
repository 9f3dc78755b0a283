//! Draws teardown traces as SVG for a browser.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use super::{GRACE, Row, grace_end_on_scale, head, precise, rows, total_ms};
use crate::{
    model::trace::{Step, Trace},
    words::{escape_control_chars, escape_xml, seconds, truncate_middle},
};

/// Width of a letter in the monospace font.
const LETTER: f64 = 7.3;
const LINE: f64 = 22.0;
const BAR: f64 = 14.0;
/// Space around the page and between traces.
const MARGIN: f64 = 20.0;
/// Width of the time scale.
const SCALE: f64 = 640.0;
/// Minimum width of a bar: short spans stay visible.
const MIN_BAR: f64 = 2.0;
/// Space between labels, bars and times.
const GAP: f64 = 12.0;
/// Maximum letters of a label. The tooltip has the whole text.
const LABEL: usize = 42;
/// Maximum letters of a failure.
const REASON: usize = 90;
/// Maximum number of lines on the time scale.
const MAX_TICKS: u64 = 8;
/// Distances between two lines on the time scale, in milliseconds.
const TICK_INTERVALS: [u64; 19] = [
    1, 5, 10, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000,
    14_400_000, DAY,
];
const DAY: u64 = 86_400_000;

const STYLE: &str = "text { font-family: monospace; font-size: 12px; fill: #222; white-space: pre } \
    .t { font-size: 14px; font-weight: bold } .m { fill: #555 } .f { fill: #b00020 } \
    .g { stroke: #ddd } .w { stroke: #888; stroke-dasharray: 2 3 } .e { stroke: #b00020; stroke-width: 1.5; stroke-dasharray: 6 3 }";

/// Draws the traces below each other, each with its own time scale.
pub fn svg(traces: &[Trace]) -> String {
    let mut page = Page::default();
    for trace in traces {
        page.add(trace);
    }
    let (width, height) = (page.width + MARGIN, page.y + MARGIN);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
        viewBox=\"0 0 {width:.0} {height:.0}\">\n<style>{STYLE}</style>\n\
        <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}</svg>\n",
        page.body
    )
}

/// The drawing so far, and its size.
#[derive(Default)]
struct Page {
    body: String,
    y: f64,
    width: f64,
}

/// The time scale of a chart.
#[derive(Clone, Copy)]
struct Scale {
    left: f64,
    end: u64,
}

/// The distance between two lines on the time scale, in milliseconds.
fn tick_interval(end: u64) -> u64 {
    let fits = |step: &u64| end / step <= MAX_TICKS;
    TICK_INTERVALS
        .into_iter()
        .find(fits)
        .unwrap_or_else(|| (end / MAX_TICKS).div_ceil(DAY) * DAY)
}

/// Colors that color-blind users can distinguish. None is the red of failures.
fn color(step: Step) -> &'static str {
    match step {
        Step::Hook => "#e69f00",
        Step::Term => "#56b4e9",
        Step::Kill => "#9c3d00",
        Step::Sandbox => "#009e73",
        Step::Devices => "#cc79a7",
        Step::Volumes => "#0072b2",
        Step::Cgroup => "#d9cc2e",
        Step::Status => "#8a8a8a",
        Step::Delete => "#333333",
        Step::Cleanup => "#7a5cc4",
    }
}

// === impl Scale ===

impl Scale {
    /// Left edge and width of a bar.
    fn bar(self, start: u64, end: Option<u64>) -> (f64, f64) {
        let at = |ms: u64| ms.min(self.end) as f64 / self.end as f64 * SCALE;
        let from = at(start).min(SCALE - MIN_BAR);
        let until = at(end.unwrap_or(self.end)).max(from + MIN_BAR);
        (self.left + from, until - from)
    }
}

// === impl Page ===

impl Page {
    fn add(&mut self, trace: &Trace) {
        let [title, state] = head(trace);
        self.y += MARGIN;
        self.line("t", MARGIN, &escape_control_chars(&title));
        self.line("m", MARGIN, &escape_control_chars(&state));
        let rows = rows(&trace.spans);
        if !rows.is_empty() {
            self.chart(&rows, total_ms(trace), grace_end_on_scale(trace));
        }
        for failure in &trace.blocked {
            self.line(
                "f",
                MARGIN,
                &truncate_middle(&format!("waits for: {failure}"), 2 * REASON),
            );
        }
    }

    /// Draws the time scale, and a line for each row.
    fn chart(&mut self, rows: &[Row<'_>], end: u64, grace_end: Option<u64>) {
        let labels: Vec<String> = rows.iter().map(Row::label).collect();
        let letters = labels
            .iter()
            .map(|label| label.chars().count())
            .max()
            .unwrap_or(0)
            .max(GRACE.len());
        let scale = Scale {
            left: MARGIN + letters as f64 * LETTER + GAP,
            end,
        };
        let (top, bottom) = (self.y + LINE, self.y + LINE * (rows.len() + 1) as f64);
        let step = usize::try_from(tick_interval(end)).unwrap_or(usize::MAX);
        for ms in (0..=end).step_by(step) {
            let x = scale.left + ms as f64 / end as f64 * SCALE;
            let label = if ms < 60_000 { precise(ms) } else { seconds(ms) };
            self.put("m", (x, top - 6.0), &label);
            // Writing to a String cannot fail.
            let _ = writeln!(
                self.body,
                r#"<line class="g" x1="{x:.1}" y1="{top:.1}" x2="{x:.1}" y2="{bottom:.1}"/>"#
            );
        }
        self.y += LINE;
        for (row, label) in rows.iter().zip(&labels) {
            self.row(row, label, scale);
        }
        if let Some(grace_end) = grace_end {
            self.grace_end(grace_end, scale, top);
        }
    }

    /// Draws the end of the grace period over all rows, with a row of its own.
    fn grace_end(&mut self, end: u64, scale: Scale, top: f64) {
        let x = scale.left + end as f64 / scale.end as f64 * SCALE;
        let baseline = self.y + LINE / 2.0 + 4.0;
        self.put("l", (MARGIN, baseline), GRACE);
        self.put("f", (scale.left + SCALE + GAP, baseline), &super::grace_text(end));
        self.y += LINE;
        let _ = writeln!(
            self.body,
            r#"<line class="e" x1="{x:.1}" y1="{top:.1}" x2="{x:.1}" y2="{:.1}"/>"#,
            self.y
        );
    }

    fn row(&mut self, row: &Row<'_>, label: &str, scale: Scale) {
        let middle = self.y + LINE / 2.0;
        let baseline = middle + 4.0;
        let _ = write!(self.body, "<g><title>{}</title>", escape_xml(&row.tooltip()));
        self.put("l", (MARGIN, baseline), label);
        let after_bars = (scale.left + SCALE + GAP, baseline);
        self.put("l", after_bars, &row.times_text());
        if let Some(why) = row.failure {
            let x = after_bars.0 + (row.times_text().chars().count() + 2) as f64 * LETTER;
            self.put("f", (x, baseline), &format!("✗ {}", truncate_middle(why, REASON)));
        }
        self.body.push_str("</g>\n");
        let bars: Vec<(f64, f64)> = row.times.iter().map(|&(start, end)| scale.bar(start, end)).collect();
        if let (Some((first, _)), Some((last, _)), true) = (bars.first(), bars.last(), bars.len() > 1) {
            let _ = writeln!(
                self.body,
                r#"<line class="w" x1="{first:.1}" y1="{middle:.1}" x2="{last:.1}" y2="{middle:.1}"/>"#
            );
        }
        for (time, bar) in row.times.iter().zip(bars) {
            self.bar(row, *time, bar, middle - BAR / 2.0);
        }
        self.y += LINE;
    }

    fn bar(&mut self, row: &Row<'_>, (start, end): (u64, Option<u64>), (x, width): (f64, f64), y: f64) {
        let times = match end {
            Some(end) if end.saturating_sub(start) < super::SHORT => {
                format!("{}, {} ms", precise(start), end.saturating_sub(start))
            }
            Some(end) => format!(
                "{} → {}, {}",
                precise(start),
                precise(end),
                precise(end.saturating_sub(start))
            ),
            None => format!("{} → …, in progress", precise(start)),
        };
        let line = match (row.failure, end) {
            (Some(_), _) => r##" stroke="#b00020" stroke-width="1.5""##,
            (None, None) => r##" fill-opacity="0.5" stroke="#222" stroke-dasharray="4 3""##,
            (None, Some(_)) => "",
        };
        let _ = writeln!(
            self.body,
            r#"<rect class="{}" x="{x:.2}" y="{y:.1}" width="{width:.2}" height="{BAR}" fill="{}"{line}><title>{}</title></rect>"#,
            row.step,
            color(row.step),
            escape_xml(&format!("{}\n{times}", row.tooltip())),
        );
    }

    /// Adds a line of text.
    fn line(&mut self, class: &str, x: f64, text: &str) {
        self.put(class, (x, self.y + LINE / 2.0 + 4.0), text);
        self.y += LINE;
    }

    /// Draws a text whose control characters are escaped.
    fn put(&mut self, class: &str, (x, y): (f64, f64), text: &str) {
        let letter = if class == "t" { LETTER * 14.0 / 12.0 } else { LETTER };
        self.width = self.width.max(x + text.chars().count() as f64 * letter);
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{}</text>"#,
            escape_xml(text)
        );
    }
}

// === impl Row ===

impl Row<'_> {
    fn label(&self) -> String {
        format!("{:8} {}", self.step, truncate_middle(self.what, LABEL))
            .trim_end()
            .to_owned()
    }

    /// The unshortened text.
    fn tooltip(&self) -> String {
        let what = format!("{} {}", self.step, escape_control_chars(self.what));
        let why = self.failure.map(|why| format!("\n✗ {}", escape_control_chars(why)));
        what.trim_end().to_owned() + &why.unwrap_or_default()
    }
}
