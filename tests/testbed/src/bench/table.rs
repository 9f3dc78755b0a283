//! The figures as a table, with the goals beside them.

use serde::Serialize;

use super::figures::Figures;
use super::line::{self, Line};
use super::{
    FULL_NODE,
    of_kubelet::ByKubelet,
    round::Agent,
    size::{Kind, Size},
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
/// Resident MiB while pods run.
const RESIDENT: f64 = 14.0;
/// The most resident MiB.
const PEAK: f64 = 16.0;
/// The most anonymous MiB.
const ANONYMOUS_PEAK: f64 = 6.0;

/// All rounds of one size.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// What was taken down.
    pub size: Size,
    /// Direct calls, round by round: seconds until each pod's sandbox was stopped.
    pub direct: Vec<Figures>,
    /// The agent in the same rounds.
    pub agent: Vec<Agent>,
    /// The kubelet in the same rounds, if it has a turn.
    pub kubelet: Vec<ByKubelet>,
}

// === impl Measured ===

impl Measured {
    /// Without any round so far.
    pub fn of(size: Size) -> Self {
        Self {
            size,
            direct: Vec::new(),
            agent: Vec::new(),
            kubelet: Vec::new(),
        }
    }

    /// Adds a round, and describes it for people.
    pub fn add(&mut self, direct: Figures, agent: Agent) -> String {
        self.direct.push(direct);
        self.agent.push(agent);
        format!(
            "{:3} pods, round {}: direct calls {direct}, agent {}, {:.2} ms CPU per pod",
            self.size.pods,
            self.agent.len(),
            agent.pods,
            agent.cpu_cleaned,
        )
    }

    /// The table's lines.
    pub fn lines(&self) -> Vec<Line> {
        let line = Line::at_most;
        let one = self.size.pods == 1;
        let full = self.size.pods >= FULL_NODE;
        let is_full_and_fast = full && self.size.kind != Kind::Slow;
        let goal_of_last = (!one).then_some(if full { FULL_NODE_RATIO } else { RATIO });
        let difference = self.direct.iter().zip(&self.agent);
        let difference = difference.map(|(direct, agent)| (agent.pods.max - direct.max) * 1000.0);

        let mut lines = self.times("last", |it| it.max, goal_of_last);
        lines.push(line(
            "agent - direct calls",
            "ms",
            Figures::of(difference),
            one.then_some(DIFFERENCE),
        ));
        lines.extend(self.times("median", |it| it.median, is_full_and_fast.then_some(MEDIAN_RATIO)));
        lines.extend(self.times("first", |it| it.min, is_full_and_fast.then_some(FIRST_RATIO)));
        let agent = |of: fn(&Agent) -> f64| Figures::of(self.agent.iter().map(of));
        lines.extend([
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
                "agent: anonymous, pods running",
                "MiB",
                agent(|it| it.anonymous_idle),
                None,
            ),
            line("agent: resident, peak", "MiB", agent(|it| it.resident_peak), Some(PEAK)),
            line(
                "agent: anonymous, peak",
                "MiB",
                agent(|it| it.anonymous_peak),
                Some(ANONYMOUS_PEAK),
            ),
            line("agent: durable writes, all pods", "no.", agent(|it| it.commits), None),
            line("agent: one durable write", "µs", agent(|it| it.commit_us), None),
        ]);
        if !self.kubelet.is_empty() {
            let cpu = Figures::of(self.kubelet.iter().map(|it| it.cpu));
            lines.push(line("kubelet: CPU per pod until deleted", "ms", cpu, None));
        }
        lines
    }

    /// Lines about one pod of all, such as the last: direct calls, agent and kubelet, and the others relative to direct calls.
    fn times(&self, which: &str, of: fn(&Figures) -> f64, goal: Option<f64>) -> Vec<Line> {
        let line = Line::at_most;
        let direct: Vec<_> = self.direct.iter().map(of).collect();
        let agent = self.agent.iter().map(|it| of(&it.pods));
        let kubelet = self.kubelet.iter().map(|it| of(&it.pods));
        let seconds = |who: &str, times| line(&format!("{who}: {which} pod"), "s", times, None);
        // Per round, so that drift during the run affects both.
        let ratio = |who: &str, times: &[f64], goal| {
            let ratios = times.iter().zip(&direct).map(|(time, direct)| time / direct);
            line(
                &format!("{who} / direct calls: {which} pod"),
                "",
                Figures::of(ratios),
                goal,
            )
        };
        let mut lines = vec![seconds("direct calls", Figures::of(direct.iter().copied()))];
        for (who, times, goal) in [
            ("agent", agent.collect::<Vec<_>>(), goal),
            ("kubelet", kubelet.collect(), None),
        ] {
            if !times.is_empty() {
                lines.push(seconds(who, Figures::of(times.iter().copied())));
                lines.push(ratio(who, &times, goal));
            }
        }
        lines
    }

    /// The lines for people.
    pub fn table(&self) -> String {
        let Size { pods, kind } = self.size;
        let kind = match (pods, kind) {
            (1, _) => "1 pod".to_owned(),
            (_, Kind::Plain) => format!("{pods} pods"),
            (_, Kind::Memory) => format!("{pods} pods, each with an emptyDir in memory"),
            (_, Kind::Slow) => format!("{pods} pods, each exits four seconds after its stop signal"),
            (_, Kind::OfKubelet) => format!("{pods} pods that a kubelet has made, each with an emptyDir in memory"),
            (_, Kind::Hooked) => format!("{pods} pods, each with a preStop hook and a sidecar"),
        };
        line::table(&format!("{kind}; {} rounds", self.agent.len()), &self.lines())
    }
}
