//! One line of a table: what was measured, median and range, and the goal beside them.

use std::fmt::{self, Write as _};

use serde::Serialize;

use super::figures::Figures;

/// One line of a table.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// What was measured.
    pub what: String,
    /// Its unit: `s`, `ms`, `µs`, `/s`, `B`, `MiB`, `no.`, or empty for a ratio.
    pub unit: &'static str,
    /// Median and range.
    pub figures: Figures,
    /// Goal of the median.
    pub goal: Option<Goal>,
}

/// What a median should be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

/// Lines below a title, for people.
pub fn table(title: &str, lines: &[Line]) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{title}");
    let _ = writeln!(out, "  {:36} {:>12} {:>21}  goal", "", "median", "range");
    for line in lines {
        let _ = writeln!(out, "{line}");
    }
    out
}

// === impl Line ===

impl Line {
    /// A line whose median should be the goal or less.
    pub fn at_most(what: &str, unit: &'static str, figures: Figures, goal: Option<f64>) -> Self {
        Self {
            what: what.to_owned(),
            unit,
            figures,
            goal: goal.map(Goal::AtMost),
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { median, min, max } = self.figures;
        let digits = match self.unit {
            "/s" | "B" => 0,
            "MiB" | "ms" | "µs" | "no." => 1,
            _ => 3,
        };
        let range = format!("{min:.digits$} - {max:.digits$}");
        write!(f, "  {:36} {median:>8.digits$} {:3} {range:>21}", self.what, self.unit)?;
        let Some(goal) = self.goal else { return Ok(()) };
        let judged = if goal.is_met(median) { "met" } else { "missed" };
        let (sign, value) = match goal {
            Goal::AtMost(value) => ('≤', value),
            Goal::AtLeast(value) => ('≥', value),
        };
        let value = if self.unit.is_empty() {
            format!("{value:.2}")
        } else {
            format!("{value} {}", self.unit)
        };
        write!(f, "  {sign} {value}: {judged}")
    }
}

// === impl Goal ===

impl Goal {
    fn is_met(self, median: f64) -> bool {
        match self {
            Self::AtMost(most) => median <= most,
            Self::AtLeast(least) => median >= least,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(unit: &'static str, median: f64, goal: Goal) -> String {
        let figures = Figures {
            median,
            min: 0.5,
            max: 12.0,
        };
        let line = Line {
            what: "it".to_owned(),
            unit,
            figures,
            goal: Some(goal),
        };
        line.to_string()
    }

    #[test]
    fn a_goal_is_met_up_to_its_value() {
        assert!(line("", 1.1, Goal::AtMost(1.1)).ends_with("≤ 1.10: met"));
        assert!(line("ms", 2.01, Goal::AtMost(2.0)).ends_with("≤ 2 ms: missed"));
    }

    #[test]
    fn a_goal_may_be_a_least_value() {
        assert!(line("", 0.95, Goal::AtLeast(0.95)).ends_with("≥ 0.95: met"));
        assert!(line("", 0.949, Goal::AtLeast(0.95)).ends_with("≥ 0.95: missed"));
    }
}
