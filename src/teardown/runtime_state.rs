//! Decides, after the grace period, whether to wait for the runtime, to kill what it has not killed, or to believe the kernel that
//! nothing runs. Pure.
//!
//! A shim may hang, or lack the program that it calls. Then each stop fails or hangs, and the runtime keeps reporting the
//! containers as running, also after their exit.

use std::time::Duration;

use tokio::time::Instant;

use crate::words::some_of;

/// How long stops must have failed after the grace period before this agent kills the pod's processes, and how long the kernel must
/// show that nothing runs.
pub const SETTLES: Duration = Duration::from_secs(30);

/// The process of a container or sandbox that the runtime reports as running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedProcess {
    /// The runtime names none, as runtimes with virtual machines do.
    None,
    /// It runs, and may be a virtual machine: its shim is not one of processes.
    Virtual(String),
    /// The process cannot be read.
    Unreadable(String),
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

/// Since when the pod should have stopped.
#[derive(Debug, Clone, Copy)]
pub struct StopTimes {
    /// End of the grace period.
    pub deadline: Instant,
    /// When this agent requested the stop, or could do so again. It has not succeeded since.
    pub requested: Instant,
    /// How long stops had failed before, until this agent could not act any more.
    pub failed_before: Duration,
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

/// How long the kernel has shown that nothing runs, while this agent could act.
#[derive(Debug, Default)]
pub struct Settling {
    since: Option<Instant>,
    before: Duration,
}

// === impl StopTimes ===

impl StopTimes {
    /// When this agent kills what the runtime has not killed.
    fn kill_at(self) -> Instant {
        self.deadline.max(self.requested) + SETTLES.saturating_sub(self.failed_before)
    }

    /// How long stops have failed after the grace period, up to `now`.
    pub fn failed_for(self, now: Instant) -> Duration {
        self.failed_before + now.saturating_duration_since(self.deadline.max(self.requested))
    }
}

// === impl Settling ===

impl Settling {
    /// Decides by the state `now`.
    pub fn judge(&mut self, facts: &RuntimeEvidence, times: StopTimes, now: Instant) -> StateDecision {
        let verdict = self.verdict(facts, times, now);
        if matches!(verdict, StateDecision::Runtime(_) | StateDecision::Kill(..)) {
            *self = Self::default();
        }
        verdict
    }

    /// This agent cannot act from `now` on.
    pub fn pause(&mut self, now: Instant) {
        self.before += self
            .since
            .take()
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
    }

    fn verdict(&mut self, facts: &RuntimeEvidence, times: StopTimes, now: Instant) -> StateDecision {
        if facts.running.is_empty() || now < times.deadline {
            return StateDecision::Runtime("the grace period has not expired".to_owned());
        }
        let (mut exited, mut runs, mut unproven) = (Vec::new(), Vec::new(), None);
        for (what, process) in &facts.running {
            match process {
                NamedProcess::Exited(process) => exited.push(format!("{what} ({process})")),
                NamedProcess::Runs {
                    process,
                    is_proven: true,
                } => runs.push(format!("{what} runs as {process}")),
                NamedProcess::Runs { process, .. } => {
                    unproven.get_or_insert_with(|| format!(
                        "{what} runs as {process}, and this agent does not kill that: neither its cgroup nor its parent proves that \
                         it is the pod's. If it is, kill it by hand; if not, restart the container runtime"
                    ));
                }
                NamedProcess::None => {
                    return StateDecision::Runtime(format!(
                        "the runtime reports {what} as running and names no process of it, as VM-based runtimes do: the runtime's \
                         state counts"
                    ));
                }
                NamedProcess::Virtual(process) => {
                    return StateDecision::Runtime(format!(
                        "{what} runs as {process}, which may be a virtual machine: the runtime's state counts"
                    ));
                }
                NamedProcess::Unreadable(why) => {
                    return StateDecision::Runtime(format!("whether the process of {what} runs is unknown: {why}"));
                }
            }
        }
        let exited = exited.join(", ");
        if facts.processes == Processes::Others {
            return StateDecision::Runtime(
                "the pod's cgroups have processes of no known container or sandbox".to_owned(),
            );
        }
        if runs.is_empty() && facts.processes == Processes::OfRuntime {
            runs.push("processes are in the cgroups of its containers and sandboxes".to_owned());
        }
        if !runs.is_empty() {
            let why = format!("the runtime has not stopped the pod: {}", some_of(runs));
            return StateDecision::Kill(times.kill_at(), why);
        }
        if let Some(unproven) = unproven {
            return StateDecision::Runtime(unproven);
        }
        // If the runtime, too, shows that all containers have exited, no cgroup is needed to show that.
        if facts.processes == Processes::NoCgroup && facts.has_containers && !facts.has_settled {
            return StateDecision::Runtime(format!(
                "the processes of {exited} have exited, and the pod has no cgroup that would show whether anything else runs"
            ));
        }
        let wrong = format!(
            "the runtime still reports these as running, and they have exited: {exited}; a restart of the container runtime corrects its state"
        );
        let since = *self.since.get_or_insert(now);
        if facts.has_settled || self.before + now.saturating_duration_since(since) >= SETTLES {
            StateDecision::Kernel(wrong)
        } else {
            StateDecision::Settling(wrong)
        }
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
    fn times(deadline: Instant) -> StopTimes {
        StopTimes {
            deadline,
            requested: deadline - SETTLES * 3,
            failed_before: Duration::ZERO,
        }
    }

    fn now() -> Instant {
        Instant::now() + SETTLES * 10
    }

    #[test]
    fn kernel_counts_when_nothing_has_run_for_30_seconds_after_the_grace_period() {
        let (deadline, exited) = (now(), facts(exited(), Processes::None));
        let mut settling = Settling::default();
        let mut at = |seconds: u64| settling.judge(&exited, times(deadline), deadline + Duration::from_secs(seconds));
        assert!(
            matches!(at(0), StateDecision::Settling(why) if why.contains("side (process 8)") && why.contains("restart"))
        );
        assert!(matches!(at(29), StateDecision::Settling(_)));
        assert!(matches!(at(30), StateDecision::Kernel(_)));
        let before = Settling::default().judge(&exited, times(deadline), deadline - Duration::from_secs(1));
        assert!(matches!(before, StateDecision::Runtime(_)));
    }

    #[test]
    fn time_in_which_this_agent_cannot_act_does_not_count_and_what_came_before_does() {
        let (deadline, exited) = (now(), facts(exited(), Processes::None));
        let mut settling = Settling::default();
        for (from, decides) in [(0, false), (100, false), (200, true)] {
            let from = deadline + Duration::from_secs(from);
            settling.judge(&exited, times(deadline), from);
            let verdict = settling.judge(&exited, times(deadline), from + SETTLES / 3);
            assert_eq!(matches!(verdict, StateDecision::Kernel(_)), decides, "{verdict:?}");
            settling.pause(from + SETTLES / 3);
        }
    }

    #[test]
    fn any_sign_of_a_process_restarts_the_30_seconds() {
        let deadline = now();
        let nothing = facts(exited(), Processes::None);
        for seen in [
            facts(runs(true), Processes::None),
            facts(runs(false), Processes::None),
            facts(NamedProcess::Unreadable("no".to_owned()), Processes::None),
            facts(exited(), Processes::Others),
            facts(exited(), Processes::OfRuntime),
        ] {
            let mut settling = Settling::default();
            settling.judge(&nothing, times(deadline), deadline);
            settling.judge(&seen, times(deadline), deadline + SETTLES);
            let verdict = settling.judge(&nothing, times(deadline), deadline + SETTLES);
            assert!(matches!(verdict, StateDecision::Settling(_)), "{seen:?}");
        }
    }

    #[test]
    fn runtime_counts_if_a_process_or_cgroup_cannot_be_checked() {
        let deadline = now();
        let much_later = deadline + SETTLES * 100;
        for (facts, words) in [
            (facts(NamedProcess::None, Processes::OfRuntime), "names no process"),
            (
                facts(NamedProcess::Virtual("process 8".to_owned()), Processes::OfRuntime),
                "may be a virtual machine",
            ),
            (
                facts(runs(false), Processes::None),
                "side runs as process 8 \"app\" in cgroup /x, and this agent does not kill that",
            ),
            (
                facts(NamedProcess::Unreadable("it hangs".to_owned()), Processes::OfRuntime),
                "it hangs",
            ),
            (facts(exited(), Processes::NoCgroup), "no cgroup"),
            (facts(exited(), Processes::Others), "no known container"),
            (facts(runs(true), Processes::Others), "no known container"),
        ] {
            let mut settling = Settling::default();
            settling.judge(&facts, times(deadline), deadline);
            let verdict = settling.judge(&facts, times(deadline), much_later);
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
            let before = Settling::default().judge(&facts, times(deadline), deadline - Duration::from_secs(1));
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
                let times = StopTimes {
                    deadline,
                    requested,
                    failed_before,
                };
                let verdict = Settling::default().judge(&facts, times, deadline + SETTLES * 2);
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
        let mut settling = Settling::default();
        settling.judge(&facts, times(deadline), deadline);
        let verdict = settling.judge(&facts, times(deadline), deadline + SETTLES);
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
            Settling::default().judge(&facts, times(deadline), deadline)
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
