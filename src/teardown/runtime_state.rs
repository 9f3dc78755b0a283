//! Decides, after the grace period, whether to wait for the runtime, to kill what it has not killed, or to believe the kernel that
//! nothing runs. Pure.
//!
//! A shim may hang, or lack the program that it calls. Then each stop fails or hangs, and the runtime keeps reporting the
//! containers as running, also after their exit.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::{node::cri::types::RuntimePod, words::some_of};

/// How long stops must have failed after the grace period before this agent kills the pod's processes, and how long the kernel must
/// show that nothing runs.
pub const SETTLES: Duration = Duration::from_secs(30);
/// How often the kernel's state is checked while a stop is in progress, and how often the stop is retried while this agent is about
/// to kill, or waits for the proof that nothing runs.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);

/// The process of a container or sandbox that the runtime reports as running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedProcess {
    /// It may run, for this reason: the runtime names none, it cannot be read, or it may be a virtual machine.
    Unknown(String),
    /// It runs.
    Runs {
        /// PID, command and cgroup.
        process: String,
        /// It is proven to be the pod's.
        is_proven: bool,
    },
    /// It has exited.
    Exited(String),
}

/// Processes in the pod's cgroups of all hierarchies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processes {
    /// The pod has no cgroup.
    NoCgroup,
    /// No process.
    None,
    /// Processes only in cgroups of the runtime's containers and sandboxes.
    OfRuntime,
    /// Other processes.
    Others,
}

/// State of a pod that the runtime reports as running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeEvidence {
    /// What the runtime reports as running or ready, such as `container main`, with its process.
    pub running: Vec<(String, NamedProcess)>,
    /// Containers are among them, not only sandboxes.
    pub has_containers: bool,
    /// Processes in the pod's cgroups.
    pub processes: Processes,
    /// An earlier attempt has concluded that all of these have exited. Their cgroups may be removed since.
    pub has_settled: bool,
}

/// Whether the state of the runtime or of the kernel counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateDecision {
    /// The runtime's; with the reason.
    Runtime(String),
    /// Undecided: processes run that the runtime should have killed. Kill them at this time, which may have come.
    Kill(Instant, String),
    /// Undecided: nothing runs, but for less than [`SETTLES`].
    Settling(String),
    /// The kernel's: nothing runs.
    Kernel(String),
}

/// State over all checks of one pod.
#[derive(Debug, Default)]
pub(super) struct RuntimeState(Mutex<StopChecks>);

#[derive(Debug, Default)]
pub(super) struct StopChecks {
    /// Since when the kernel has shown that nothing runs.
    settles_since: Option<Instant>,
    /// How long it had shown that before this agent could not act.
    settled_before: Duration,
    /// When each container and sandbox was first seen running, since boot. A process that started later has reused its PID.
    pub first_seen: BTreeMap<String, Duration>,
    /// When only the network could not be taken down for the first time.
    pub network_failed_since: Option<Instant>,
    /// When a stop was requested, or could be requested again. It has not succeeded since.
    pub requested: Option<Instant>,
    /// How long stops had failed before this agent could not act any more.
    failed_before: Duration,
    /// When the state must be checked again, in this attempt or the next one.
    pub next_check: Option<Instant>,
    /// What was killed last, so that a kill that is repeated is reported once.
    pub killed: Option<String>,
}

// === impl StopChecks ===

impl StopChecks {
    /// Decides by the state `now`, and when it is checked again. `deadline` is the end of the grace period.
    pub fn judge(&mut self, facts: &RuntimeEvidence, deadline: Instant, now: Instant) -> StateDecision {
        let requested = *self.requested.get_or_insert(now);
        let decision = if facts.running.is_empty() || now < deadline {
            StateDecision::Runtime("the grace period has not expired".to_owned())
        } else if let Some(decision) = shows_processes(facts, || {
            deadline.max(requested) + SETTLES.saturating_sub(self.failed_before)
        }) {
            decision
        } else {
            self.settle(facts, now)
        };
        if matches!(decision, StateDecision::Runtime(_) | StateDecision::Kill(..)) {
            self.restart_settling();
        }
        let soon = now + INTERVAL;
        self.next_check = match &decision {
            StateDecision::Kill(at, _) if *at > now => Some(soon.min(*at)),
            StateDecision::Kill(..) | StateDecision::Settling(_) => Some(soon),
            StateDecision::Runtime(_) | StateDecision::Kernel(_) => None,
        };
        decision
    }

    /// Nothing runs: the kernel's state counts once it has shown that for long enough.
    fn settle(&mut self, facts: &RuntimeEvidence, now: Instant) -> StateDecision {
        let exited = facts.running.iter().filter_map(|(what, process)| match process {
            NamedProcess::Exited(process) => Some(format!("{what} ({process})")),
            NamedProcess::Unknown(_) | NamedProcess::Runs { .. } => None,
        });
        let exited = exited.collect::<Vec<_>>().join(", ");
        // If the runtime, too, shows that all containers have exited, no cgroup is needed to show that.
        if facts.processes == Processes::NoCgroup && facts.has_containers && !facts.has_settled {
            return StateDecision::Runtime(format!(
                "the processes of {exited} have exited, and the pod has no cgroup that would show whether anything else runs"
            ));
        }
        let wrong = format!(
            "the runtime still reports these as running, and they have exited: {exited}; a restart of the container runtime corrects its state"
        );
        let since = *self.settles_since.get_or_insert(now);
        if facts.has_settled || self.settled_before + now.saturating_duration_since(since) >= SETTLES {
            StateDecision::Kernel(wrong)
        } else {
            StateDecision::Settling(wrong)
        }
    }

    /// The kernel does not show any more that nothing runs.
    pub fn restart_settling(&mut self) {
        (self.settles_since, self.settled_before) = (None, Duration::ZERO);
    }

    /// Records the containers and sandboxes that the runtime reports as running, `since_boot`.
    pub fn record_running(&mut self, runtime_pod: &RuntimePod, since_boot: Duration) {
        let containers = runtime_pod.possibly_running().map(|it| &it.id);
        let ready = runtime_pod.sandboxes.iter().filter(|it| it.is_ready);
        for id in containers.chain(ready.map(|it| &it.id)) {
            self.first_seen.entry(id.clone()).or_insert(since_boot);
        }
    }

    /// Stops the clocks of failing stops and of the proof that nothing runs: this agent cannot act from `now` on. They continue later:
    /// between the starts of a kubelet that never works, this agent has only some seconds each time.
    pub fn pause(&mut self, deadline: Instant, now: Instant) {
        let passed = |since: Instant| now.saturating_duration_since(since);
        self.settled_before += self.settles_since.take().map_or(Duration::ZERO, passed);
        let requested = self.requested.take();
        self.failed_before += requested.map_or(Duration::ZERO, |requested| passed(deadline.max(requested)));
        self.next_check = None;
    }
}

/// The decision if anything of the pod runs, or may run. `kill_at`: when this agent kills what the runtime has not killed.
fn shows_processes(facts: &RuntimeEvidence, kill_at: impl FnOnce() -> Instant) -> Option<StateDecision> {
    let (mut runs, mut unproven) = (Vec::new(), None);
    for (what, process) in &facts.running {
        match process {
            NamedProcess::Unknown(why) => return Some(StateDecision::Runtime(why.clone())),
            NamedProcess::Runs {
                process,
                is_proven: true,
            } => runs.push(format!("{what} runs as {process}")),
            NamedProcess::Runs { process, .. } => {
                unproven.get_or_insert_with(|| {
                    StateDecision::Runtime(format!(
                        "{what} runs as {process}, and this agent does not kill that: neither its cgroup nor its parent proves that \
                         it is the pod's. If it is, kill it by hand; if not, restart the container runtime"
                    ))
                });
            }
            NamedProcess::Exited(_) => {}
        }
    }
    if facts.processes == Processes::Others {
        let why = "the pod's cgroups have processes of no known container or sandbox";
        return Some(StateDecision::Runtime(why.to_owned()));
    }
    if runs.is_empty() && facts.processes == Processes::OfRuntime {
        runs.push("processes are in the cgroups of its containers and sandboxes".to_owned());
    }
    if runs.is_empty() {
        return unproven;
    }
    let why = format!("the runtime has not stopped the pod: {}", some_of(runs));
    Some(StateDecision::Kill(kill_at(), why))
}

// === impl RuntimeState ===

impl RuntimeState {
    /// Time until the next attempt at the latest, if this agent is about to act.
    pub fn next_check(&self) -> Option<Duration> {
        let at = self.lock().next_check.take()?;
        Some(at.saturating_duration_since(Instant::now()))
    }

    pub fn lock(&self) -> MutexGuard<'_, StopChecks> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited() -> NamedProcess {
        NamedProcess::Exited("process 8".to_owned())
    }

    fn runs(is_proven: bool) -> NamedProcess {
        NamedProcess::Runs {
            process: "process 8 \"app\" in cgroup /x".to_owned(),
            is_proven,
        }
    }

    fn facts(process: NamedProcess, processes: Processes) -> RuntimeEvidence {
        RuntimeEvidence {
            running: vec![
                (
                    "container main".to_owned(),
                    NamedProcess::Exited("process 7".to_owned()),
                ),
                ("container side".to_owned(), process),
            ],
            has_containers: true,
            processes,
            has_settled: false,
        }
    }

    /// The stop was requested long before the end of the grace period, which is `deadline`.
    fn requested_before(deadline: Instant) -> StopChecks {
        StopChecks {
            requested: Some(deadline - SETTLES * 3),
            ..StopChecks::default()
        }
    }

    fn now() -> Instant {
        Instant::now() + SETTLES * 10
    }

    #[test]
    fn kernel_counts_when_nothing_has_run_for_30_seconds_after_the_grace_period() {
        let (deadline, exited) = (now(), facts(exited(), Processes::None));
        let mut checks = requested_before(deadline);
        let mut at = |seconds: u64| checks.judge(&exited, deadline, deadline + Duration::from_secs(seconds));
        assert!(
            matches!(at(0), StateDecision::Settling(why) if why.contains("side (process 8)") && why.contains("restart"))
        );
        assert!(matches!(at(29), StateDecision::Settling(_)));
        assert!(matches!(at(30), StateDecision::Kernel(_)));
        let before = requested_before(deadline).judge(&exited, deadline, deadline - Duration::from_secs(1));
        assert!(matches!(before, StateDecision::Runtime(_)));
    }

    #[test]
    fn time_in_which_this_agent_cannot_act_does_not_count_and_what_came_before_does() {
        let (deadline, exited) = (now(), facts(exited(), Processes::None));
        let mut checks = requested_before(deadline);
        for (from, decides) in [(0, false), (100, false), (200, true)] {
            let from = deadline + Duration::from_secs(from);
            checks.judge(&exited, deadline, from);
            let verdict = checks.judge(&exited, deadline, from + SETTLES / 3);
            assert_eq!(matches!(verdict, StateDecision::Kernel(_)), decides, "{verdict:?}");
            checks.pause(deadline, from + SETTLES / 3);
        }
    }

    #[test]
    fn any_sign_of_a_process_restarts_the_30_seconds() {
        let deadline = now();
        let nothing = facts(exited(), Processes::None);
        for seen in [
            facts(runs(true), Processes::None),
            facts(runs(false), Processes::None),
            facts(NamedProcess::Unknown("no".to_owned()), Processes::None),
            facts(exited(), Processes::Others),
            facts(exited(), Processes::OfRuntime),
        ] {
            let mut checks = requested_before(deadline);
            checks.judge(&nothing, deadline, deadline);
            checks.judge(&seen, deadline, deadline + SETTLES);
            let verdict = checks.judge(&nothing, deadline, deadline + SETTLES);
            assert!(matches!(verdict, StateDecision::Settling(_)), "{seen:?}");
        }
    }

    #[test]
    fn runtime_counts_if_a_process_or_cgroup_cannot_be_checked() {
        let deadline = now();
        let much_later = deadline + SETTLES * 100;
        for (facts, words) in [
            (
                facts(runs(false), Processes::None),
                "side runs as process 8 \"app\" in cgroup /x, and this agent does not kill that",
            ),
            (
                facts(NamedProcess::Unknown("it hangs".to_owned()), Processes::OfRuntime),
                "it hangs",
            ),
            (facts(exited(), Processes::NoCgroup), "no cgroup"),
            (facts(exited(), Processes::Others), "no known container"),
            (facts(runs(true), Processes::Others), "no known container"),
        ] {
            let mut checks = requested_before(deadline);
            checks.judge(&facts, deadline, deadline);
            let verdict = checks.judge(&facts, deadline, much_later);
            assert!(
                matches!(&verdict, StateDecision::Runtime(why) if why.contains(words)),
                "{verdict:?}"
            );
        }
    }

    #[test]
    fn processes_are_killed_when_stops_have_failed_for_30_seconds_after_the_grace_period() {
        let deadline = now();
        for (facts, words) in [
            (
                facts(exited(), Processes::OfRuntime),
                "in the cgroups of its containers",
            ),
            (
                facts(runs(true), Processes::OfRuntime),
                "side runs as process 8 \"app\" in cgroup /x",
            ),
            (facts(runs(true), Processes::None), "side runs as"),
            // The hand of a user moved it out of its cgroup.
            (facts(runs(true), Processes::NoCgroup), "side runs as"),
            // What is proven is killed, also beside what is not.
            (
                facts(runs(false), Processes::OfRuntime),
                "in the cgroups of its containers",
            ),
        ] {
            let before = requested_before(deadline).judge(&facts, deadline, deadline - Duration::from_secs(1));
            assert!(matches!(before, StateDecision::Runtime(_)), "{before:?}");
            // A first request after the grace period, such as after a restart of this agent, gets the 30 seconds, too.
            for (requested, failed_before, at) in [
                (deadline - SETTLES, Duration::ZERO, deadline + SETTLES),
                (deadline + SETTLES * 2, Duration::ZERO, deadline + SETTLES * 3),
                // Between the starts of a kubelet that never works, the time adds up.
                (
                    deadline + SETTLES * 2,
                    SETTLES / 3,
                    deadline + SETTLES * 3 - SETTLES / 3,
                ),
                (deadline + SETTLES * 2, SETTLES * 2, deadline + SETTLES * 2),
            ] {
                let mut checks = StopChecks {
                    requested: Some(requested),
                    failed_before,
                    ..StopChecks::default()
                };
                let verdict = checks.judge(&facts, deadline, deadline + SETTLES * 2);
                assert!(
                    matches!(&verdict, StateDecision::Kill(kill_at, why) if *kill_at == at && why.contains(words)),
                    "{verdict:?}"
                );
            }
        }
    }

    #[test]
    fn sandbox_alone_needs_no_cgroup_to_count_as_exited() {
        let deadline = now();
        let facts = RuntimeEvidence {
            running: vec![("sandbox 0123".to_owned(), exited())],
            has_containers: false,
            ..facts(exited(), Processes::NoCgroup)
        };
        let mut checks = requested_before(deadline);
        checks.judge(&facts, deadline, deadline);
        let verdict = checks.judge(&facts, deadline, deadline + SETTLES);
        assert!(matches!(verdict, StateDecision::Kernel(_)), "{verdict:?}");
    }

    #[test]
    fn conclusion_holds_while_no_process_is_seen() {
        let deadline = now();
        let settled = |process, processes| {
            let facts = RuntimeEvidence {
                has_settled: true,
                ..facts(process, processes)
            };
            requested_before(deadline).judge(&facts, deadline, deadline)
        };
        assert!(matches!(
            settled(exited(), Processes::NoCgroup),
            StateDecision::Kernel(_)
        ));
        assert!(matches!(
            settled(runs(true), Processes::NoCgroup),
            StateDecision::Kill(..)
        ));
        assert!(matches!(
            settled(runs(false), Processes::NoCgroup),
            StateDecision::Runtime(_)
        ));
        assert!(matches!(
            settled(exited(), Processes::Others),
            StateDecision::Runtime(_)
        ));
    }
}
