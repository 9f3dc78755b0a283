//! Measurements as a table: median and range of each row, and its goal.

use std::fmt::Write as _;

use indexmap::IndexMap;

/// Least, median and greatest of several measurements; zeros without any.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Figures {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

/// Rows in the order of their first measurement.
#[derive(Debug, Default)]
pub struct Table(IndexMap<String, Row>);

#[derive(Debug)]
struct Row {
    unit: &'static str,
    /// The median should be this or less.
    goal: Option<f64>,
    values: Vec<f64>,
}

impl Figures {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else {
            return Self::default();
        };
        let median = f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]);
        Self { min, median, max }
    }
}

impl Table {
    /// Adds measurements to a row. Units are `s`, `ms`, `µs`, `%`, `/s`, `B`, `MiB`, `no.`, or nothing for a ratio.
    pub fn add(&mut self, what: impl Into<String>, unit: &'static str, values: impl IntoIterator<Item = f64>) {
        self.add_with_goal(what, unit, None, values);
    }

    /// As [`Self::add`]; the median should be `goal` or less.
    pub fn add_with_goal(
        &mut self,
        what: impl Into<String>,
        unit: &'static str,
        goal: Option<f64>,
        values: impl IntoIterator<Item = f64>,
    ) {
        let new = Row {
            unit,
            goal,
            values: Vec::new(),
        };
        self.0.entry(what.into()).or_insert(new).values.extend(values);
    }

    /// For people.
    pub fn text(&self, title: &str) -> String {
        let mut out = format!("{title}\n  {:48} {:>12} {:>21}  goal\n", "", "median", "range");
        for (what, Row { unit, goal, values }) in &self.0 {
            let Figures { min, median, max } = Figures::of(values.iter().copied());
            let digits = match *unit {
                "/s" | "B" => 0,
                "MiB" | "ms" | "µs" | "no." => 1,
                _ => 3,
            };
            let range = format!("{min:.digits$} - {max:.digits$}");
            let goal = goal.map_or_else(String::new, |goal| {
                let judged = if median <= goal { "met" } else { "missed" };
                format!("  ≤ {goal} {unit}: {judged}")
            });
            // Writing to a String cannot fail.
            let _ = writeln!(out, "  {what:48} {median:>8.digits$} {unit:3} {range:>21}{goal}");
        }
        out
    }
}
