//! What happens in a run: pods, and what befalls them, the node and the cluster, and when. A seed makes one.

use std::time::Duration;

use testbed::{dice::Dice, scripted_cri::Manners};

use crate::pods::PodPlan;

/// All that happens, before the end: then all troubles are over, and what has to end must come to an end.
#[derive(Debug, Clone)]
pub struct Plan {
    /// For what the agent itself leaves to chance.
    pub seed: u64,
    /// Those of the runtime.
    pub manners: Manners,
    /// It names the process of each container. One that runs them in virtual machines does not.
    pub names_processes: bool,
    pub pods: Vec<PodPlan>,
    /// In the order of their times.
    pub steps: Vec<Step>,
}

/// Something happens.
#[derive(Debug, Clone)]
pub struct Step {
    pub at: Duration,
    pub what: What,
}

/// What happens. Pods are named by their place in the plan.
#[derive(Debug, Clone)]
pub enum What {
    /// Somebody deletes it, with this grace period or its own.
    Delete { pod: usize, grace: Option<i64> },
    /// Somebody who runs the node asks for its end, as Failed or however it ends.
    Kill {
        pod: usize,
        grace: Option<i64>,
        evict: bool,
    },
    /// Somebody deletes its object at once, with its finalizers.
    Vanish { pod: usize },
    /// The same, and a new pod of its name takes its place.
    Replace { pod: usize },
    /// Who owes its finalizer takes it off.
    Release { pod: usize },
    /// Requests of the agent meet this trouble.
    Api {
        trouble: ApiTrouble,
        verb: Option<&'static str>,
        times: u32,
    },
    /// No connection to the API server stands or is opened.
    ApiAway { lasts: Duration },
    /// Another cluster is reached by the API server's address.
    OtherCluster { lasts: Duration },
    /// The runtime's next changing calls meet this trouble.
    Call { trouble: CallTrouble, times: usize },
    /// The runtime's looks fail so.
    Look { trouble: LookTrouble, lasts: Duration },
    /// The runtime is not there; what runs goes on.
    RuntimeAway { lasts: Duration },
    /// A container of the pod runs again, if others still run.
    Restart { pod: usize },
    /// The runtime forgets the containers of the pod that have ended.
    Forget { pod: usize },
    /// A container's end is not known to the runtime any more.
    Unknown { pod: usize },
    /// The shims of the pod's running containers die with these, or only that of one. The runtime goes on reporting that they
    /// run. For so long, processes that the containers had started are left.
    ShimDies {
        pod: usize,
        all: bool,
        rest: Option<Duration>,
    },
    /// The runtime is away for so long, and then knows which shims have died.
    RuntimeRestarts { down: Duration },
    /// The next unmounts are refused, since somebody is in there.
    Busy { times: usize },
    /// A kubelet's process is there.
    Kubelet { lasts: Duration },
    /// The journal's disk takes nothing.
    DiskFails { lasts: Duration },
    /// The agent ends where it stands, once others had so many turns.
    Crash { turns: usize, down: Duration },
    /// The same at the next but so many of its effects, which does not happen any more.
    CrashAtEffect { after: usize },
    /// The disk takes so many more writes of the journal, and then the agent is gone: within a commit, too.
    CutAtWrite { after: usize },
    /// The machine starts anew: all containers end.
    Reboot { down: Duration },
    /// The agent is told to stop.
    Stop { down: Duration },
}

#[derive(Debug, Clone, Copy)]
pub enum ApiTrouble {
    Refuse,
    LoseResponse,
    Delay(u64),
    Status(u16),
    CutWatch,
    StallWatch,
}

#[derive(Debug, Clone, Copy)]
pub enum CallTrouble {
    Error,
    Hang,
    Late(Duration),
    /// It is done, and said to have failed.
    DoneButError,
    /// It is said to be done; only of stops.
    NotDone,
}

#[derive(Debug, Clone, Copy)]
pub enum LookTrouble {
    Error,
    Hang,
    Late(Duration),
}

/// Within this time all of it happens.
const LASTS: u64 = 80_000;

// === impl Plan ===

impl Plan {
    /// The plan of this seed.
    pub fn of(seed: u64) -> Self {
        let mut dice = Dice::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5eed);
        // Half of them are small: what a few things do together is found sooner, and shrinks faster.
        let small = dice.one_in(2);
        let pods = (0..1 + dice.up_to(if small { 2 } else { 5 }))
            .map(|_| PodPlan::any(&mut dice))
            .collect::<Vec<_>>();
        let mut steps = Vec::new();
        for pod in 0..pods.len() {
            if !dice.one_in(6) {
                steps.push(Step {
                    at: dice.millis(20_000),
                    what: What::Delete {
                        pod,
                        grace: grace(&mut dice),
                    },
                });
            }
        }
        for _ in 0..dice.up_to(if small { 5 } else { 14 }) {
            let at = dice.millis(LASTS);
            steps.push(Step {
                at,
                what: What::any(&mut dice, pods.len()),
            });
        }
        // Whatever else is drawn stays as it was before there were two.
        let mut other = Dice::new(seed ^ 0x0c10);
        let manners = if other.one_in(2) {
            Manners::CriO
        } else {
            Manners::Containerd
        };
        let mut plan = Self {
            seed,
            manners,
            names_processes: true,
            pods,
            steps,
        };
        plan.runtime_is_wrong(&mut Dice::new(seed ^ 0x5417));
        plan.steps.sort_by_key(|step| step.at);
        plan
    }

    /// What may be wrong in the runtime for the whole run. It has dice of its own, so that all else stays as it was.
    fn runtime_is_wrong(&mut self, dice: &mut Dice) {
        self.names_processes = !dice.one_in(4);
        if dice.one_in(4) {
            let pod = dice.up_to(self.pods.len());
            let at = dice.millis(LASTS / 2);
            let what = What::ShimDies {
                pod,
                all: dice.one_in(2),
                rest: dice.one_in(3).then(|| dice.millis(60_000)),
            };
            self.steps.push(Step { at, what });
            if dice.one_in(3) {
                let at = at + dice.millis(LASTS);
                let down = dice.millis(10_000);
                self.steps.push(Step {
                    at,
                    what: What::RuntimeRestarts { down },
                });
            }
        }
        if dice.one_in(4) {
            let pod = dice.up_to(self.pods.len());
            let containers = &mut self.pods[pod].containers;
            let container = dice.up_to(containers.len());
            containers[container].unread = true;
        }
    }
}

impl What {
    fn any(dice: &mut Dice, pods: usize) -> Self {
        let pod = dice.up_to(pods);
        match dice.up_to(30) {
            0..=2 => Self::Delete {
                pod,
                grace: grace(dice),
            },
            3 => Self::Vanish { pod },
            4 => Self::Replace { pod },
            5 => Self::Release { pod },
            6..=10 => Self::Api {
                trouble: ApiTrouble::any(dice),
                verb: verb(dice),
                times: times(dice),
            },
            11 => Self::ApiAway {
                lasts: dice.millis(40_000),
            },
            12 => Self::OtherCluster {
                lasts: dice.millis(40_000),
            },
            13..=15 => Self::Call {
                trouble: CallTrouble::any(dice),
                times: 1 + dice.up_to(3),
            },
            16 => Self::Look {
                trouble: LookTrouble::any(dice),
                lasts: dice.millis(20_000),
            },
            17 => Self::RuntimeAway {
                lasts: dice.millis(30_000),
            },
            18 => Self::Restart { pod },
            19 if dice.one_in(2) => Self::Forget { pod },
            19 => Self::Unknown { pod },
            20 => Self::Busy {
                times: 1 + dice.up_to(5),
            },
            21 => Self::Kubelet {
                lasts: dice.millis(40_000),
            },
            22 => Self::DiskFails {
                lasts: dice.millis(20_000),
            },
            23 => Self::Crash {
                turns: dice.up_to(60),
                down: dice.millis(20_000),
            },
            26..=28 => Self::Kill {
                pod,
                grace: grace(dice),
                evict: dice.one_in(2),
            },
            24 if dice.one_in(2) => Self::CutAtWrite { after: dice.up_to(12) },
            24 => Self::CrashAtEffect { after: dice.up_to(6) },
            25 if dice.one_in(2) => Self::Reboot {
                down: dice.millis(20_000),
            },
            25 => Self::Stop {
                down: dice.millis(20_000),
            },
            _ => Self::Crash {
                turns: dice.up_to(6),
                down: dice.millis(2_000),
            },
        }
    }
}

fn times(dice: &mut Dice) -> u32 {
    1 + u32::try_from(dice.up_to(4)).unwrap()
}

fn grace(dice: &mut Dice) -> Option<i64> {
    match dice.up_to(8) {
        0..=3 => None,
        4 => Some(1),
        5 => Some(0),
        _ => Some(i64::try_from(dice.up_to(60)).unwrap() + 1),
    }
}

fn verb(dice: &mut Dice) -> Option<&'static str> {
    [
        None,
        None,
        Some("get"),
        Some("list"),
        Some("patch"),
        Some("delete"),
        Some("watch"),
    ][dice.up_to(7)]
}

// === impl troubles ===

impl ApiTrouble {
    fn any(dice: &mut Dice) -> Self {
        match dice.up_to(9) {
            0 => Self::Refuse,
            1 | 2 => Self::LoseResponse,
            3 => Self::Delay(u64::try_from(dice.up_to(30_000)).unwrap()),
            4 | 5 => Self::Status([409, 422, 429, 500, 504, 403, 410, 404][dice.up_to(8)]),
            6 | 7 => Self::CutWatch,
            _ => Self::StallWatch,
        }
    }
}

impl CallTrouble {
    fn any(dice: &mut Dice) -> Self {
        match dice.up_to(5) {
            0 => Self::Error,
            1 => Self::Hang,
            2 => Self::Late(dice.millis(20_000)),
            3 => Self::DoneButError,
            _ => Self::NotDone,
        }
    }
}

impl LookTrouble {
    fn any(dice: &mut Dice) -> Self {
        match dice.up_to(3) {
            0 => Self::Error,
            1 => Self::Hang,
            _ => Self::Late(dice.millis(10_000)),
        }
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = if self.names_processes { "" } else { "no " };
        writeln!(f, "  runtime: {:?}, names {named}processes", self.manners)?;
        for (number, pod) in self.pods.iter().enumerate() {
            let PodPlan {
                kind,
                grace,
                finalizer,
                containers,
                old_sandboxes,
                volumes,
            } = pod;
            writeln!(
                f,
                "  p{number}: {kind:?}, grace {grace} s, finalizer {finalizer}, old sandboxes {old_sandboxes}, volumes {volumes:?}"
            )?;
            for (number, container) in containers.iter().enumerate() {
                writeln!(f, "    c{number}: {container:?}")?;
            }
        }
        for Step { at, what } in &self.steps {
            writeln!(f, "  {:>9.3} {what:?}", at.as_secs_f64())?;
        }
        Ok(())
    }
}
