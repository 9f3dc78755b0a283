//! The figures as a table, with the goals beside them.

use serde::Serialize;

use super::figures::Figures;
use super::line::{self, Goal, Line};
use super::{
    FULL_NODE,
    round::{Agent, Kind, Size, Straight},
};

/// For many pods, as a multiple of the direct calls.
const RATIO: f64 = 1.10;
/// The same for a full node.
const FULL_NODE_RATIO: f64 = 1.00;
/// The median pod of a full node, as a multiple of the direct calls: its pods end one after the other.
const MEDIAN_RATIO: f64 = 0.65;
/// The first pod of a full node, as a multiple of the direct calls.
const FIRST_RATIO: f64 = 0.15;
/// For one pod, in milliseconds more than the direct calls.
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

// === impl Measured ===

impl Measured {
    /// The table's lines.
    pub fn lines(&self) -> Vec<Line> {
        let straight = |of: fn(&Straight) -> f64| Figures::of(self.straight.iter().map(of));
        let agent = |of: fn(&Agent) -> f64| Figures::of(self.agent.iter().map(of));
        // Per round, so that drift during the run affects both.
        let pairs = |of: fn(&Straight, &Agent) -> f64| {
            Figures::of(
                self.straight
                    .iter()
                    .zip(&self.agent)
                    .map(|(straight, agent)| of(straight, agent)),
            )
        };
        let one = self.size.pods == 1;
        let full = self.size.pods >= FULL_NODE;
        let is_full_and_fast = full && self.size.kind != Kind::Slow;
        let line = |what: &str, unit, figures, goal: Option<f64>| Line {
            what: what.to_owned(),
            unit,
            figures,
            goal: goal.map(Goal::AtMost),
        };
        vec![
            line("straight calls: last pod", "s", straight(|it| it.last), None),
            line("agent: last pod", "s", agent(|it| it.last), None),
            line(
                "agent / straight calls",
                "",
                pairs(|straight, agent| agent.last / straight.last),
                (!one).then_some(if full { FULL_NODE_RATIO } else { RATIO }),
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
                is_full_and_fast.then_some(MEDIAN_RATIO),
            ),
            line("straight calls: first pod", "s", straight(|it| it.first_pod), None),
            line("agent: first pod", "s", agent(|it| it.first_pod), None),
            line(
                "agent / straight calls: first pod",
                "",
                pairs(|straight, agent| agent.first_pod / straight.first_pod),
                is_full_and_fast.then_some(FIRST_RATIO),
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
            line("agent: durable writes, all pods", "no.", agent(|it| it.commits), None),
            line("agent: one durable write", "µs", agent(|it| it.commit_us), None),
        ]
    }

    /// The lines for people.
    pub fn table(&self) -> String {
        let Size { pods, kind } = self.size;
        let kind = match (pods, kind) {
            (1, _) => "1 pod".to_owned(),
            (_, Kind::Plain) => format!("{pods} pods"),
            (_, Kind::Memory) => format!("{pods} pods, each with an emptyDir in memory"),
            (_, Kind::Slow) => format!("{pods} pods, each exits four seconds after its stop signal"),
            (_, Kind::Hooked) => format!("{pods} pods, each with a preStop hook and a sidecar"),
        };
        line::table(&format!("{kind}; {} rounds", self.agent.len()), &self.lines())
    }
}
