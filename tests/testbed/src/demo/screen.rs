//! What the demo prints, which is also what its picture shows.
#![allow(clippy::print_stdout, reason = "this is the demo's output")]

use super::picture::Line;

/// Mark of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// As expected.
    Good,
    /// Not as expected.
    Bad,
}

/// Standard output.
#[derive(Debug, Default)]
pub struct Screen {
    /// Lines for the picture, while they are recorded.
    recorded: Vec<Line>,
    is_recorded: bool,
}

impl Mood {
    /// The character for it.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Good => "✔",
            Self::Bad => "✗",
        }
    }
}

impl Screen {
    /// Sets whether further output is part of the picture.
    pub fn record(&mut self, is_recorded: bool) {
        self.is_recorded = is_recorded;
    }

    /// The lines of the picture.
    pub fn recorded(&self) -> &[Line] {
        &self.recorded
    }

    /// Prints text.
    pub fn say(&mut self, text: &str) {
        println!("{text}");
        self.add(text.split('\n').map(|line| Line::Text(line.to_owned())));
    }

    /// Prints a heading.
    pub fn heading(&mut self, text: &str) {
        println!("\n{text}");
        self.add([Line::Text(String::new()), Line::Heading(text.to_owned())]);
    }

    /// Prints a line with a mark.
    pub fn mark(&mut self, mood: Mood, text: &str) {
        println!("  {} {text}", mood.mark());
        self.add([Line::Marked(mood, text.to_owned())]);
    }

    fn add(&mut self, lines: impl IntoIterator<Item = Line>) {
        if self.is_recorded {
            self.recorded.extend(lines);
        }
    }
}
