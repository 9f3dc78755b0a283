//! Lines that are redrawn on a terminal, or appended without one.
#![allow(clippy::print_stdout, reason = "this is the demo's output")]

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _, stdout};
use std::time::Duration;

use super::picture::Line;

/// On wider terminals, lines are shorter: a wrapped line could not be redrawn.
const WIDTH: usize = 79;

/// Mark of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// Nothing has happened yet.
    Waiting,
    /// In progress.
    Busy,
    /// As expected.
    Good,
    /// Not as expected.
    Bad,
}

/// One line of progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// How it stands.
    pub mood: Mood,
    /// Its label.
    pub name: String,
    /// Its text; without a terminal the line is printed when it changes.
    pub gist: String,
    /// Text that changes all the time; for terminals only.
    pub detail: String,
}

/// Standard output.
#[derive(Debug)]
pub struct Screen {
    terminal: bool,
    colours: bool,
    drawn: Vec<Row>,
    /// Lines for the picture, while they are recorded.
    recorded: Vec<Line>,
    is_recorded: bool,
}

// === impl Mood ===

impl Mood {
    /// The character for it.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Waiting => "·",
            Self::Busy => "▸",
            Self::Good => "✔",
            Self::Bad => "✗",
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Self::Waiting => "\x1b[2m",
            Self::Busy => "\x1b[33m",
            Self::Good => "\x1b[32m",
            Self::Bad => "\x1b[31m",
        }
    }
}

// === impl Screen ===

impl Screen {
    /// Detects whether there is a terminal and whether to use colors.
    pub fn new() -> Self {
        let terminal = stdout().is_terminal();
        Self {
            terminal,
            colours: terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            drawn: Vec::new(),
            recorded: Vec::new(),
            is_recorded: false,
        }
    }

    /// Whether further output is part of the picture.
    pub fn record(&mut self, is_recorded: bool) {
        self.is_recorded = is_recorded;
    }

    /// The lines of the picture.
    pub fn recorded(&self) -> &[Line] {
        &self.recorded
    }

    fn add(&mut self, lines: impl IntoIterator<Item = Line>) {
        if self.is_recorded {
            self.recorded.extend(lines);
        }
    }

    /// Prints text.
    pub fn say(&mut self, text: &str) {
        println!("{text}");
        self.add(text.split('\n').map(|line| Line::Text(line.to_owned())));
    }

    /// Prints a heading.
    pub fn heading(&mut self, text: &str) {
        self.add([Line::Text(String::new()), Line::Heading(text.to_owned())]);
        if self.colours {
            println!("\n\x1b[1m{text}\x1b[0m");
        } else {
            println!("\n{text}");
        }
    }

    /// Prints a line with a mark.
    pub fn mark(&mut self, mood: Mood, text: &str) {
        self.add([Line::Marked(mood, text.to_owned())]);
        println!("  {} {text}", self.marked(mood));
    }

    /// Draws rows over the ones drawn before, or adds those that have changed.
    pub fn draw(&mut self, elapsed: Duration, rows: Vec<Row>) {
        let mut out = String::new();
        if self.terminal {
            if !self.drawn.is_empty() {
                // Writing to a String cannot fail.
                let _ = write!(out, "\x1b[{}A", self.drawn.len());
            }
            for row in &rows {
                let text = format!("{:12} {}{}", row.name, row.gist, row.detail);
                let text: String = text.chars().take(WIDTH - 4).collect();
                let _ = writeln!(out, "\r\x1b[2K  {} {text}", self.marked(row.mood));
            }
        } else {
            for (index, row) in rows.iter().enumerate() {
                if self.drawn.get(index).is_none_or(|before| before.gist != row.gist) {
                    let seconds = elapsed.as_secs_f64();
                    let _ = writeln!(out, "  {seconds:5.2} s  {:12} {}", row.name, row.gist);
                }
            }
        }
        self.drawn = rows;
        print!("{out}");
        // The reader may have exited; the demo continues.
        stdout().flush().ok();
    }

    /// Further output starts below the drawn lines.
    pub fn settle(&mut self) {
        let rows = std::mem::take(&mut self.drawn);
        self.add(
            rows.iter()
                .map(|row| Line::Marked(row.mood, format!("{:12} {}", row.name, row.gist))),
        );
    }

    fn marked(&self, mood: Mood) -> String {
        if self.colours {
            format!("{}{}\x1b[0m", mood.colour(), mood.mark())
        } else {
            mood.mark().to_owned()
        }
    }
}

impl Default for Screen {
    fn default() -> Self {
        Self::new()
    }
}
