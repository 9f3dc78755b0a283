//! Decides, after the grace period, whether to believe the runtime or the kernel about running containers. Pure.
//!
//! If a shim dies, its exit event is lost. The runtime then keeps reporting RUNNING, and each stop fails or hangs.

use std::time::Duration;

use tokio::time::Instant;

/// How long after the grace period the kernel must show that nothing runs.
pub const SETTLES: Duration = Duration::from_secs(30);

/// The process of a container that the runtime reports as running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedProcess {
    /// The runtime names none, as runtimes with virtual machines do.
    None,
    /// The process cannot be read.
    Unreadable(String),
    /// It runs.
    Runs(i32),
    /// It has exited.
    Exited(i32),
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
    /// Containers that the runtime reports as running, by name.
    pub running: Vec<(String, NamedProcess)>,
    /// Processes in the pod's cgroups.
    pub processes: Processes,
    /// An earlier attempt has concluded that all of these containers have exited. Their cgroups may be removed since.
    pub has_settled: bool,
}

/// Whether the state of the runtime or of the kernel counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateDecision {
    /// The runtime's; with the reason.
    Runtime(String),
    /// Undecided: the containers' processes have exited, but others are left in cgroups of the runtime. Kill these.
    Kill,
    /// Undecided: nothing runs, but for less than [`SETTLES`].
    Settling(String),
    /// The kernel's: nothing runs.
    Kernel(String),
}

/// Since when the kernel shows that nothing runs.
#[derive(Debug, Default)]
pub struct Settling {
    since: Option<Instant>,
}

// === impl Settling ===

impl Settling {
    /// Restarts the time.
    pub fn reset(&mut self) {
        self.since = None;
    }

    /// Decides by the state `now`. `deadline` is the end of the grace period.
    pub fn judge(&mut self, facts: &RuntimeEvidence, deadline: Instant, now: Instant) -> StateDecision {
        let verdict = self.verdict(facts, deadline, now);
        if matches!(verdict, StateDecision::Runtime(_) | StateDecision::Kill) {
            self.reset();
        }
        verdict
    }

    fn verdict(&mut self, facts: &RuntimeEvidence, deadline: Instant, now: Instant) -> StateDecision {
        if facts.running.is_empty() || now < deadline {
            return StateDecision::Runtime("the grace period has not expired".to_owned());
        }
        let mut exited = Vec::new();
        for (name, process) in &facts.running {
            match process {
                NamedProcess::Exited(pid) => exited.push(format!("{name} (process {pid})")),
                NamedProcess::None => {
                    return StateDecision::Runtime(format!(
                        "the runtime reports container {name} as running and names no process of it, as VM-based runtimes do: the \
                         runtime's state counts"
                    ));
                }
                NamedProcess::Unreadable(why) => {
                    return StateDecision::Runtime(format!(
                        "whether the process of container {name} runs is unknown: {why}"
                    ));
                }
                NamedProcess::Runs(pid) => {
                    return StateDecision::Runtime(format!("process {pid} of container {name} runs"));
                }
            }
        }
        let exited = exited.join(", ");
        match facts.processes {
            Processes::None => {}
            Processes::NoCgroup if facts.has_settled => {}
            Processes::NoCgroup => {
                return StateDecision::Runtime(format!(
                    "the processes of {exited} have exited, and the pod has no cgroup that would show whether anything else runs"
                ));
            }
            Processes::Others => {
                return StateDecision::Runtime(format!(
                    "the processes of {exited} have exited, and others are in the pod's cgroups"
                ));
            }
            Processes::OfRuntime if now < deadline + SETTLES => {
                return StateDecision::Runtime(format!(
                    "the processes of {exited} have exited, and others of the pod have not"
                ));
            }
            Processes::OfRuntime => return StateDecision::Kill,
        }
        let wrong = format!(
            "the runtime still reports these containers as running, but their processes have exited: {exited}; a restart of \
             the container runtime corrects its state"
        );
        let since = *self.since.get_or_insert(now);
        if facts.has_settled || now.saturating_duration_since(since) >= SETTLES {
            StateDecision::Kernel(wrong)
        } else {
            StateDecision::Settling(wrong)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(process: NamedProcess, processes: Processes) -> RuntimeEvidence {
        RuntimeEvidence {
            running: vec![
                ("main".to_owned(), NamedProcess::Exited(7)),
                ("side".to_owned(), process),
            ],
            processes,
            has_settled: false,
        }
    }

    #[test]
    fn kernel_counts_when_nothing_has_run_for_30_seconds_after_the_grace_period() {
        let (deadline, exited) = (
            Instant::now() + SETTLES,
            facts(NamedProcess::Exited(8), Processes::None),
        );
        let mut settling = Settling::default();
        let mut at = |seconds: u64| settling.judge(&exited, deadline, deadline + Duration::from_secs(seconds));
        assert!(
            matches!(at(0), StateDecision::Settling(why) if why.contains("side (process 8)") && why.contains("restart"))
        );
        assert!(matches!(at(29), StateDecision::Settling(_)));
        assert!(matches!(at(30), StateDecision::Kernel(_)));
        let before = Settling::default().judge(&exited, deadline, deadline - Duration::from_secs(1));
        assert!(matches!(before, StateDecision::Runtime(_)));
    }

    #[test]
    fn any_sign_of_a_process_restarts_the_30_seconds() {
        let deadline = Instant::now();
        let exited = facts(NamedProcess::Exited(8), Processes::None);
        for seen in [
            facts(NamedProcess::Runs(8), Processes::None),
            facts(NamedProcess::Unreadable("no".to_owned()), Processes::None),
            facts(NamedProcess::Exited(8), Processes::Others),
            facts(NamedProcess::Exited(8), Processes::OfRuntime),
        ] {
            let mut settling = Settling::default();
            settling.judge(&exited, deadline, deadline);
            settling.judge(&seen, deadline, deadline + SETTLES);
            let verdict = settling.judge(&exited, deadline, deadline + SETTLES);
            assert!(matches!(verdict, StateDecision::Settling(_)), "{seen:?}");
        }
    }

    #[test]
    fn runtime_counts_if_a_process_or_cgroup_cannot_be_checked() {
        let deadline = Instant::now();
        let much_later = deadline + SETTLES * 100;
        for (facts, words) in [
            (facts(NamedProcess::None, Processes::None), "names no process"),
            (
                facts(NamedProcess::Runs(8), Processes::None),
                "process 8 of container side runs",
            ),
            (
                facts(NamedProcess::Unreadable("it hangs".to_owned()), Processes::None),
                "it hangs",
            ),
            (facts(NamedProcess::Exited(8), Processes::NoCgroup), "no cgroup"),
            (facts(NamedProcess::Exited(8), Processes::Others), "others are in"),
        ] {
            let mut settling = Settling::default();
            settling.judge(&facts, deadline, deadline);
            let verdict = settling.judge(&facts, deadline, much_later);
            assert!(
                matches!(&verdict, StateDecision::Runtime(why) if why.contains(words)),
                "{verdict:?}"
            );
        }
    }

    #[test]
    fn leftover_processes_are_killed_when_all_named_processes_have_exited() {
        let deadline = Instant::now();
        let pause_runs = facts(NamedProcess::Exited(8), Processes::OfRuntime);
        let judge = |at| Settling::default().judge(&pause_runs, deadline, at);
        assert!(matches!(judge(deadline), StateDecision::Runtime(_)));
        assert_eq!(judge(deadline + SETTLES), StateDecision::Kill);
        let main_runs = facts(NamedProcess::Runs(8), Processes::OfRuntime);
        let verdict = Settling::default().judge(&main_runs, deadline, deadline + SETTLES);
        assert!(matches!(verdict, StateDecision::Runtime(_)));
    }

    #[test]
    fn conclusion_holds_while_no_process_is_seen() {
        let deadline = Instant::now();
        let settled = |process, processes| {
            let facts = RuntimeEvidence {
                has_settled: true,
                ..facts(process, processes)
            };
            Settling::default().judge(&facts, deadline, deadline)
        };
        assert!(matches!(
            settled(NamedProcess::Exited(8), Processes::NoCgroup),
            StateDecision::Kernel(_)
        ));
        assert!(matches!(
            settled(NamedProcess::Runs(8), Processes::NoCgroup),
            StateDecision::Runtime(_)
        ));
        assert!(matches!(
            settled(NamedProcess::Exited(8), Processes::Others),
            StateDecision::Runtime(_)
        ));
    }
}
