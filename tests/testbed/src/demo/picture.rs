//! Draws the demo's output as an SVG, as a terminal shows it. Pure.

use std::fmt::Write as _;

use super::screen::Mood;

/// Width and height of a character, in pixels.
const CHARACTER: (f64, f64) = (8.4, 18.0);
const MARGIN: f64 = 18.0;
/// Left-aligned fractions of a column, in eighths.
const EIGHTHS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];

const BACKGROUND: &str = "#11151c";
const TEXT: &str = "#c9d1d9";
const FAINT: &str = "#6e7681";

/// A line of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    Heading(String),
    Text(String),
    /// Text behind a mark.
    Marked(Mood, String),
}

pub fn svg(lines: &[Line]) -> String {
    let first = lines.iter().position(|line| !line.text().is_empty()).unwrap_or(0);
    let lines = &lines[first..];
    let columns = lines.iter().map(|line| line.text().chars().count()).max().unwrap_or(0);
    let width = 2.0 * MARGIN + CHARACTER.0 * f64::from(u32::try_from(columns).unwrap_or(0));
    let height = 2.0 * MARGIN + CHARACTER.1 * f64::from(u32::try_from(lines.len()).unwrap_or(0));
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace" font-size="14">"#
    );
    let _ = writeln!(out, r#"<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>"#);
    let mut top = MARGIN;
    for line in lines {
        line.draw(top, &mut out);
        top += CHARACTER.1;
    }
    out.push_str("</svg>\n");
    out
}

/// The color of a step's bar.
fn color_of_step(step: &str) -> &'static str {
    match step {
        "hook" => "#a371f7",
        "term" => "#d29922",
        "kill" => "#f85149",
        "sandbox" | "devices" => "#3fb950",
        "delete" => "#58a6ff",
        "cleanup" => "#484f58",
        _ => "#39c5cf",
    }
}

fn color_of_mood(mood: Mood) -> &'static str {
    match mood {
        Mood::Good => "#3fb950",
        Mood::Bad => "#f85149",
    }
}

fn left_of(column: usize) -> f64 {
    MARGIN + CHARACTER.0 * f64::from(u32::try_from(column).unwrap_or(0))
}

/// The filled part of a character's column, if it belongs to a bar.
fn part_of_column(letter: char) -> Option<f64> {
    let eighths = EIGHTHS.iter().position(|part| *part == letter)?;
    Some(f64::from(u32::try_from(eighths + 1).ok()?) / 8.0)
}

fn draw_bar(left: f64, top: f64, width: f64, color: &str, out: &mut String) {
    let (top, height) = (top + 2.5, CHARACTER.1 - 5.0);
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        r#"<rect x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}" fill="{color}"/>"#
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Line {
    fn text(&self) -> String {
        match self {
            Self::Heading(text) | Self::Text(text) => text.clone(),
            Self::Marked(mood, text) => format!("  {} {text}", mood.mark()),
        }
    }

    fn draw(&self, top: f64, out: &mut String) {
        let text = self.text();
        let bar = color_of_step(text.split_whitespace().next().unwrap_or_default());
        // Adjacent parts of a bar are one rectangle, without seams.
        let mut drawn: Option<(usize, f64)> = None;
        let (mut run, mut start) = (String::new(), 0);
        for (column, letter) in text.chars().chain([' ']).enumerate() {
            let part = part_of_column(letter);
            match (part, &mut drawn) {
                (Some(part), Some((_, width))) => *width += part,
                (Some(part), None) => drawn = Some((column, part)),
                (None, Some((column, width))) => {
                    draw_bar(left_of(*column), top, CHARACTER.0 * *width, bar, out);
                    drawn = None;
                }
                (None, None) => {}
            }
            // Two spaces end a run: each begins at its own column, whatever the font's width is.
            let is_gap = letter == ' ' && (run.is_empty() || run.ends_with(' '));
            if part.is_some() || letter == '│' || is_gap {
                self.draw_run(run.trim_end(), start, top, out);
                run.clear();
                start = column + 1;
            } else {
                run.push(letter);
            }
            if letter == '│' {
                let left = left_of(column) + CHARACTER.0 / 2.0;
                let bottom = top + CHARACTER.1;
                let _ = writeln!(out, r##"<path d="M{left:.1} {top:.1}V{bottom:.1}" stroke="#30363d"/>"##);
            }
        }
        self.draw_run(run.trim_end(), start, top, out);
    }

    fn draw_run(&self, run: &str, column: usize, top: f64, out: &mut String) {
        if run.is_empty() {
            return;
        }
        let (color, weight) = match self {
            Self::Heading(_) => ("#ffffff", r#" font-weight="bold""#),
            Self::Marked(mood, _) if run.starts_with(mood.mark()) => (color_of_mood(*mood), ""),
            _ if run.contains('✗') => ("#f85149", ""),
            _ if run.contains('→') || run.contains(" s +") || run.starts_with("uid ") => (FAINT, ""),
            _ => (TEXT, ""),
        };
        let (left, base) = (left_of(column), top + CHARACTER.1 - 4.5);
        let _ = writeln!(
            out,
            r#"<text x="{left:.1}" y="{base:.1}" fill="{color}"{weight} xml:space="preserve">{}</text>"#,
            escaped(run)
        );
    }
}
