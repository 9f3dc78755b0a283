//! The results as tables, with goals.

use std::collections::BTreeMap;

use serde::Serialize;

use super::bench_cluster::{Cascade, Policy};
use super::progress::thousands;
use crate::bench::figures::Figures;
use crate::bench::line::{Goal, Line, table};

/// Part of direct deletion's rate.
const BACKGROUND: f64 = 0.95;
/// The same for foreground deletion, where the owner needs a GET and a PATCH as well.
const FOREGROUND: f64 = 0.9;
/// Part of kube-controller-manager's CPU time.
const CPU: f64 = 0.08;
/// Resident MiB, from this number of dependents on.
const RESIDENT: f64 = 48.0;
const MANY: u32 = 100_000;
/// Part of the time of plain lists, if there are many objects to list.
const START: f64 = 1.1;

/// One round of one size.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Round {
    /// Direct deletion: dependents per second.
    pub direct: Option<f64>,
    /// kube-controller-manager.
    pub manager: BTreeMap<Policy, Cascade>,
    /// The agent.
    pub agent: BTreeMap<Policy, Cascade>,
}

/// All rounds of one size.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Number of dependents.
    pub objects: u32,
    /// The rounds.
    pub rounds: Vec<Round>,
}

// === impl Measured ===

impl Measured {
    /// The policies that were measured.
    pub fn policies(&self) -> Vec<Policy> {
        [Policy::Background, Policy::Foreground]
            .into_iter()
            .filter(|policy| {
                *policy == Policy::Background
                    || self
                        .rounds
                        .iter()
                        .any(|round| round.agent.contains_key(policy) || round.manager.contains_key(policy))
            })
            .collect()
    }

    /// Lines of the table.
    pub fn lines(&self, policy: Policy) -> Vec<Line> {
        let direct = self.line("direct", "/s", None, |round| round.direct);
        let lines = direct.into_iter();
        lines
            .chain(self.manager_lines(policy))
            .chain(self.agent_lines(policy))
            .collect()
    }

    fn manager_lines(&self, policy: Policy) -> Vec<Line> {
        let manager = |of: fn(&Cascade) -> f64| move |round: &Round| round.manager.get(&policy).map(of);
        [
            self.line("manager", "/s", None, manager(|it| it.rate)),
            self.line("manager / direct", "", None, |round| {
                Some(round.manager.get(&policy)?.rate / round.direct?)
            }),
            self.line("manager: CPU", "s", None, manager(|it| it.cpu)),
            self.line("manager: resident, settled", "MiB", None, manager(|it| it.resident)),
            self.line(
                "manager: resident, peak at the start",
                "MiB",
                None,
                manager(|it| it.peak_start),
            ),
            self.line("manager: resident, peak", "MiB", None, manager(|it| it.peak)),
            self.line("manager: start until synced", "s", None, manager(|it| it.start)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn agent_lines(&self, policy: Policy) -> Vec<Line> {
        let rate_goal = Goal::AtLeast(match policy {
            Policy::Background => BACKGROUND,
            Policy::Foreground => FOREGROUND,
        });
        let many = |goal| (self.objects >= MANY).then_some(goal);
        let agent = |of: fn(&Cascade) -> f64| move |round: &Round| round.agent.get(&policy).map(of);
        let resident = many(Goal::AtMost(RESIDENT));
        [
            self.line("agent", "/s", None, agent(|it| it.rate)),
            self.line("agent / direct", "", Some(rate_goal), |round| {
                Some(round.agent.get(&policy)?.rate / round.direct?)
            }),
            self.line("agent / manager", "", None, |round| {
                Some(round.agent.get(&policy)?.rate / round.manager.get(&policy)?.rate)
            }),
            self.line("agent: CPU", "s", None, agent(|it| it.cpu)),
            self.line("agent / manager: CPU", "", Some(Goal::AtMost(CPU)), |round| {
                Some(round.agent.get(&policy)?.cpu / round.manager.get(&policy)?.cpu)
            }),
            self.line("agent: resident, settled", "MiB", resident, agent(|it| it.resident)),
            self.line(
                "agent: resident, peak at the start",
                "MiB",
                resident,
                agent(|it| it.peak_start),
            ),
            self.line("agent: resident, peak", "MiB", resident, agent(|it| it.peak)),
            self.line("plain lists of everything", "s", None, |round| {
                let any = round.agent.get(&policy).or_else(|| round.manager.get(&policy))?;
                Some(any.lists.seconds)
            }),
            self.line("agent: start until synced", "s", None, agent(|it| it.start)),
            self.line(
                "agent: start / plain lists",
                "",
                many(Goal::AtMost(START)),
                agent(|it| it.start / it.lists.seconds),
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Ratios are taken round by round, so that a drift affects both sides.
    fn line(
        &self,
        what: impl Into<String>,
        unit: &'static str,
        goal: Option<Goal>,
        of: impl Fn(&Round) -> Option<f64>,
    ) -> Option<Line> {
        let values: Vec<f64> = self.rounds.iter().filter_map(of).collect();
        (!values.is_empty()).then(|| Line {
            what: what.into(),
            unit,
            figures: Figures::of(values),
            goal,
        })
    }

    /// The tables as text.
    pub fn tables(&self) -> String {
        let tables = self.policies().into_iter().map(|policy| {
            let (objects, rounds) = (thousands(self.objects), self.rounds.len());
            let times = if rounds == 1 { "round" } else { "rounds" };
            let title = format!("{objects} ConfigMaps of one owner, {}; {rounds} {times}", policy.name());
            table(&title, &self.lines(policy))
        });
        tables.collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_gc::lists::Lists;

    fn cascade(rate: f64, cpu: f64) -> Cascade {
        Cascade {
            lists: Lists {
                seconds: 2.0,
                objects: 100_000,
                kinds: 50,
            },
            seconds: 1.0,
            rate,
            start: 2.1,
            cpu,
            resident: 40.0,
            peak_start: 47.0,
            peak: 49.0,
        }
    }

    fn round(direct: f64, manager: f64, agent: f64) -> Round {
        Round {
            direct: Some(direct),
            manager: [(Policy::Background, cascade(manager, 50.0))].into(),
            agent: [(Policy::Background, cascade(agent, 4.0))].into(),
        }
    }

    fn line(measured: &Measured, what: &str) -> String {
        let lines = measured.lines(Policy::Background);
        lines.into_iter().find(|line| line.what == what).unwrap().to_string()
    }

    #[test]
    fn each_round_is_compared_with_its_own_direct_deletion() {
        let rounds = vec![round(2000.0, 1000.0, 1920.0), round(500.0, 250.0, 480.0)];
        let measured = Measured {
            objects: 100_000,
            rounds,
        };
        assert!(line(&measured, "agent / direct").ends_with("0.960 - 0.960  ≥ 0.95: met"));
        assert!(line(&measured, "manager / direct").ends_with("0.500 - 0.500"));
        assert!(line(&measured, "agent / manager: CPU").ends_with("≤ 0.08: met"));
        assert!(line(&measured, "agent: resident, peak").ends_with("≤ 48 MiB: missed"));
        assert!(line(&measured, "agent: start / plain lists").ends_with("≤ 1.10: met"));
    }

    #[test]
    fn a_contender_that_did_not_run_has_no_lines() {
        let mut round = round(2000.0, 1000.0, 1.0);
        round.agent.clear();
        let measured = Measured {
            objects: 5000,
            rounds: vec![round],
        };
        assert_eq!(measured.policies(), [Policy::Background]);
        let lines = measured.lines(Policy::Background);
        assert!(!lines.iter().any(|line| line.what.starts_with("agent")));
    }
}
