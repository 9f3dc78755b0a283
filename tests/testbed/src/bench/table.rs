//! The figures as a table, with the goals beside them.

use std::fmt::Write as _;

use serde::Serialize;

use super::figures::Figures;
use super::round::{Agent, Size, Straight};

/// For many pods, as a multiple of the straight calls.
const RATIO: f64 = 1.10;
/// For one pod, in milliseconds on top of the straight calls.
const DIFFERENCE: f64 = 40.0;
/// CPU milliseconds per pod.
const CPU: f64 = 2.0;
/// Resident MiB.
const RESIDENT: f64 = 16.0;

/// All rounds of one size.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// What was taken down.
    pub size: Size,
    /// Straight calls, round by round.
    pub straight: Vec<Straight>,
    /// The agent in the same rounds.
    pub agent: Vec<Agent>,
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// What was measured.
    pub what: &'static str,
    /// In what: `s`, `ms`, `MiB`, or nothing for a ratio.
    pub unit: &'static str,
    /// Median and range.
    pub figures: Figures,
    /// What the median should not exceed.
    pub goal: Option<f64>,
}

// === impl Measured ===

impl Measured {
    /// The table's lines.
    pub fn lines(&self) -> Vec<Line> {
        let straight = |of: fn(&Straight) -> f64| Figures::of(self.straight.iter().map(of));
        let agent = |of: fn(&Agent) -> f64| Figures::of(self.agent.iter().map(of));
        // Round by round: what drifts over the run is the same for both.
        let pairs = |of: fn(&Straight, &Agent) -> f64| {
            Figures::of(
                self.straight
                    .iter()
                    .zip(&self.agent)
                    .map(|(straight, agent)| of(straight, agent)),
            )
        };
        let one = self.size.pods == 1;
        let line = |what, unit, figures, goal| Line {
            what,
            unit,
            figures,
            goal,
        };
        vec![
            line("straight calls: last pod", "s", straight(|it| it.last), None),
            line("agent: last pod", "s", agent(|it| it.last), None),
            line(
                "agent / straight calls",
                "",
                pairs(|straight, agent| agent.last / straight.last),
                (!one).then_some(RATIO),
            ),
            line(
                "agent - straight calls",
                "ms",
                pairs(|straight, agent| (agent.last - straight.last) * 1000.0),
                one.then_some(DIFFERENCE),
            ),
            line("straight calls: median pod", "s", straight(|it| it.median_pod), None),
            line("agent: median pod", "s", agent(|it| it.median_pod), None),
            line(
                "agent / straight calls: median pod",
                "",
                pairs(|straight, agent| agent.median_pod / straight.median_pod),
                None,
            ),
            line("agent: clean-up after the last pod", "s", agent(|it| it.clean_up), None),
            line(
                "agent: CPU per pod until deleted",
                "ms",
                agent(|it| it.cpu_deleted),
                Some(CPU),
            ),
            line(
                "agent: CPU per pod until clean",
                "ms",
                agent(|it| it.cpu_cleaned),
                Some(CPU),
            ),
            line(
                "agent: resident, pods running",
                "MiB",
                agent(|it| it.resident_idle),
                Some(RESIDENT),
            ),
            line(
                "agent: resident, peak",
                "MiB",
                agent(|it| it.resident_peak),
                Some(RESIDENT),
            ),
        ]
    }

    /// The lines for people.
    pub fn table(&self) -> String {
        let Size { pods, memory_volumes } = self.size;
        let kind = match (pods, memory_volumes) {
            (1, _) => "1 pod".to_owned(),
            (_, false) => format!("{pods} pods"),
            (_, true) => format!("{pods} pods, each with an emptyDir in memory"),
        };
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{kind}; {} rounds", self.agent.len());
        let _ = writeln!(out, "  {:36} {:>12} {:>21}  goal", "", "median", "range");
        for line in self.lines() {
            let _ = writeln!(out, "{line}");
        }
        out
    }
}

// === impl Line ===

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Figures { median, min, max } = self.figures;
        let digits = if matches!(self.unit, "MiB" | "ms") { 1 } else { 3 };
        let range = format!("{min:.digits$} - {max:.digits$}");
        write!(f, "  {:36} {median:>8.digits$} {:3} {range:>21}", self.what, self.unit)?;
        let Some(goal) = self.goal else { return Ok(()) };
        let judged = if median <= goal { "met" } else { "missed" };
        let goal = if self.unit.is_empty() {
            format!("{goal:.2}")
        } else {
            format!("{goal} {}", self.unit)
        };
        write!(f, "  ≤ {goal}: {judged}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(unit: &'static str, median: f64, goal: f64) -> String {
        let figures = Figures {
            median,
            min: 0.5,
            max: 12.0,
        };
        let line = Line {
            what: "it",
            unit,
            figures,
            goal: Some(goal),
        };
        line.to_string()
    }

    #[test]
    fn a_goal_is_met_up_to_its_value() {
        assert!(line("", 1.1, 1.1).ends_with("≤ 1.10: met"));
        assert!(line("ms", 2.01, 2.0).ends_with("≤ 2 ms: missed"));
    }
}
