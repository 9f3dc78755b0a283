//! Draws traces as SVG for a browser.

use std::fmt::Write as _;

use super::{Row, head, precise, rows, scale};
use crate::{
    model::trace::{Step, Trace},
    words::{escape_control_chars, truncate_middle},
};

/// Width of a letter in the monospace font, in pixels, as all sizes here.
const LETTER: f64 = 7.3;
const LINE: f64 = 22.0;
const BAR: f64 = 14.0;
/// Space around the page and between its columns.
const MARGIN: f64 = 20.0;
/// Width of the time scale.
const SCALE: f64 = 640.0;
/// Minimum width of a bar: short spans stay visible.
const MIN_BAR: f64 = 2.0;
/// Intervals of the time scale. Few enough for their labels.
const INTERVALS: u64 = 8;
/// Maximum letters of a label and of a failure. The tooltip has the whole text.
const LABEL: usize = 42;
const REASON: usize = 90;

const STYLE: &str = "text { font-family: monospace; font-size: 12px; fill: #222; white-space: pre } \
    .m { fill: #555 } .f { fill: #b00020 } .g { stroke: #ddd } .w { stroke: #888; stroke-dasharray: 2 3 } \
    .e { stroke: #b00020; stroke-width: 1.5; stroke-dasharray: 6 3 }";

/// Draws the traces below each other, each with its own time scale.
pub fn svg(traces: &[Trace]) -> String {
    let mut page = Page::default();
    for trace in traces {
        page.add(trace);
    }
    let (width, height) = (page.width + MARGIN, page.y + MARGIN);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\">\n<style>{STYLE}</style>\n\
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

fn escape_xml(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

/// The place of a time on a scale that begins at `left`.
fn place(left: f64, ms: u64, total: u64) -> f64 {
    left + ms.min(total) as f64 / total as f64 * SCALE
}

// === impl Page ===

impl Page {
    fn add(&mut self, trace: &Trace) {
        self.y += MARGIN;
        for line in head(trace).lines() {
            self.text("m", MARGIN, &escape_control_chars(line));
            self.y += LINE;
        }
        let rows = rows(&trace.spans, false);
        let labels: Vec<String> = rows.iter().map(Row::label).collect();
        let letters = labels.iter().map(|label| label.chars().count()).max();
        let left = MARGIN * 2.0 + letters.unwrap_or(0) as f64 * LETTER;
        let (total, grace_end) = scale(trace);
        let (top, bottom) = (self.y + LINE, self.y + LINE * (rows.len() + 1) as f64);
        for number in 0..=INTERVALS {
            let ms = total * number / INTERVALS;
            let x = place(left, ms, total);
            self.text("m", x, &precise(ms));
            self.line("g", (x, top), (x, bottom));
        }
        self.y += LINE;
        for (row, label) in rows.iter().zip(&labels) {
            self.row(row, label, left, total);
        }
        if let Some(end) = grace_end {
            let x = place(left, end, total);
            self.line("e", (x, top), (x, self.y + LINE));
            self.text("f", x + LETTER, &format!("{} grace period expires", precise(end)));
            self.y += LINE;
        }
        for failure in &trace.blocked {
            let text = format!("waits for: {failure}");
            self.text("f", MARGIN, &truncate_middle(&text, 2 * REASON));
            self.y += LINE;
        }
    }

    /// A row with its label, its bars and its times.
    fn row(&mut self, row: &Row<'_>, label: &str, left: f64, total: u64) {
        let middle = self.y + LINE / 2.0;
        self.text("l", MARGIN, label);
        let times = row.times_text();
        let after = left + SCALE + MARGIN;
        self.text("l", after, &times);
        if let Some(why) = row.failure {
            let x = after + (times.chars().count() + 2) as f64 * LETTER;
            self.text("f", x, &format!("✗ {}", truncate_middle(why, REASON)));
        }
        let bar = |&(start, end): &(u64, Option<u64>)| {
            let from = place(left, start, total).min(left + SCALE - MIN_BAR);
            (from, place(left, end.unwrap_or(total), total).max(from + MIN_BAR))
        };
        if let [first, .., last] = row.times.as_slice() {
            self.line("w", (bar(first).0, middle), (bar(last).0, middle));
        }
        for time in &row.times {
            let (from, until) = bar(time);
            let (start, end) = (
                precise(time.0),
                time.1.map_or_else(|| "in progress".to_owned(), precise),
            );
            let line = match (row.failure, time.1) {
                (Some(_), _) => r##" stroke="#b00020" stroke-width="1.5""##,
                (None, None) => r##" fill-opacity="0.5" stroke="#222" stroke-dasharray="4 3""##,
                (None, Some(_)) => "",
            };
            // Writing to a String cannot fail.
            let _ = writeln!(
                self.body,
                r#"<rect x="{from:.2}" y="{:.1}" width="{:.2}" height="{BAR}" fill="{}"{line}><title>{}</title></rect>"#,
                middle - BAR / 2.0,
                until - from,
                color(row.step),
                escape_xml(&format!("{}\n{start} → {end}", row.tooltip())),
            );
        }
        self.y += LINE;
    }

    fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let _ = writeln!(
            self.body,
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        );
    }

    /// A text on the current line, without control characters.
    fn text(&mut self, class: &str, x: f64, text: &str) {
        self.width = self.width.max(x + text.chars().count() as f64 * LETTER);
        let (y, text) = (self.y + LINE / 2.0 + 4.0, escape_xml(text));
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{text}</text>"#
        );
    }
}

// === impl Row ===

impl Row<'_> {
    fn label(&self) -> String {
        let label = format!("{:8} {}", self.step, truncate_middle(self.what, LABEL));
        label.trim_end().to_owned()
    }

    /// The unshortened text.
    fn tooltip(&self) -> String {
        let why = self.failure.map(|why| format!("\n✗ {}", escape_control_chars(why)));
        format!(
            "{} {}{}",
            self.step,
            escape_control_chars(self.what),
            why.unwrap_or_default()
        )
    }
}
