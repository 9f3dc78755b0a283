//! The plan of a run: pods, and timed faults of the pods, the node and the cluster. It is generated from a seed.

use std::time::Duration;

use testbed::{dice::Dice, scripted_cri::Manners};

use crate::pods::PodPlan;

/// All steps of a run. After them all faults end, and all pods that must terminate have to terminate.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Seed of the agent's random numbers.
    pub seed: u64,
    /// Faults of the runtime for the whole run.
    pub manners: Manners,
    /// The runtime reports the PID of each container. One with virtual machines does not.
    pub names_processes: bool,
    pub pods: Vec<PodPlan>,
    /// Ordered by time.
    pub steps: Vec<Step>,
}

/// One timed action.
#[derive(Debug, Clone)]
pub struct Step {
    pub at: Duration,
    pub what: Action,
}

/// An action. Pods are given by their index in the plan; a duration is how long it lasts, or how long the agent or the runtime
/// is down.
#[derive(Debug, Clone)]
pub enum Action {
    /// A user deletes the pod, with this grace period or its own.
    Delete(usize, Option<i64>),
    /// A user of the node stops the pod, with this grace period or its own, or evicts it.
    Stop(usize, Option<i64>, Cause),
    /// A user deletes the object at once, including its finalizers.
    Vanish(usize),
    /// The same, and a new pod with its name is created.
    Replace(usize),
    /// A controller removes the pod's finalizer.
    Release(usize),
    /// So many requests of the agent with this verb, or any, fail like this.
    Api(ApiFault, Option<&'static str>, u32),
    /// The API server is unreachable.
    ApiAway(Duration),
    /// The API server's address leads to another cluster.
    OtherCluster(Duration),
    /// So many next write calls to the runtime fail like this.
    Call(CallFault, usize),
    /// Read calls to the runtime fail like this.
    Look(ReadFault, Duration),
    /// The runtime is down; containers continue to run.
    RuntimeAway(Duration),
    /// A container of the pod restarts, if others still run.
    Restart(usize),
    /// The runtime forgets exited containers of the pod.
    Forget(usize),
    /// The runtime has lost the exit status of a container.
    Unknown(usize),
    /// The shims of the pod's running containers die with them, or only one of them. The runtime still reports them as running.
    /// Child processes of the containers are left for this time.
    ShimDies(usize, Shims, Option<Duration>),
    /// The runtime restarts, and detects dead shims afterwards.
    RuntimeRestarts(Duration),
    /// So many next unmounts fail with EBUSY.
    Busy(usize),
    /// A kubelet process runs.
    Kubelet(Duration),
    /// The journal's disk is full.
    DiskFails(Duration),
    /// The agent crashes after this many scheduler turns.
    Crash(usize, Duration),
    /// The agent crashes before this many further effects.
    CrashAtEffect(usize),
    /// The agent crashes after this many further writes of the journal, even within a commit.
    CutAtWrite(usize),
    /// The node reboots: all containers exit.
    Reboot(Duration),
    /// The agent is stopped.
    StopAgent(Duration),
}

/// Why a user of the node stops a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Stop,
    Eviction,
}

/// Which of a pod's shims die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shims {
    All,
    First,
}

#[derive(Debug, Clone, Copy)]
pub enum ApiFault {
    Refuse,
    LoseResponse,
    Delay(u64),
    Status(u16),
    CutWatch,
    StallWatch,
}

#[derive(Debug, Clone, Copy)]
pub enum CallFault {
    Error,
    Hang,
    Late(Duration),
    /// The call succeeds but reports an error.
    DoneButError,
    /// The call reports success but does nothing; only stops.
    NotDone,
}

#[derive(Debug, Clone, Copy)]
pub enum ReadFault {
    Error,
    Hang,
    Late(Duration),
}

/// All steps are within this time.
const LASTS: u64 = 80_000;

// === impl Plan ===

impl Plan {
    /// Generates the plan of this seed.
    pub fn of(seed: u64) -> Self {
        let mut dice = Dice::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5eed);
        // Half of the plans are small: they find interactions sooner and shrink faster.
        let small = dice.one_in(2);
        let pods = (0..1 + dice.up_to(if small { 2 } else { 5 }))
            .map(|_| PodPlan::any(&mut dice))
            .collect::<Vec<_>>();
        let mut steps = Vec::new();
        for pod in 0..pods.len() {
            if !dice.one_in(6) {
                steps.push(Step {
                    at: dice.millis(20_000),
                    what: Action::Delete(pod, grace(&mut dice)),
                });
            }
        }
        for _ in 0..dice.up_to(if small { 5 } else { 14 }) {
            let at = dice.millis(LASTS);
            steps.push(Step {
                at,
                what: Action::any(&mut dice, pods.len()),
            });
        }
        // Keeps the other random choices of older seeds.
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

    /// Adds runtime faults for the whole run. They have their own random numbers, so that older seeds keep their plans.
    fn runtime_is_wrong(&mut self, dice: &mut Dice) {
        self.names_processes = !dice.one_in(4);
        if dice.one_in(4) {
            let pod = dice.up_to(self.pods.len());
            let at = dice.millis(LASTS / 2);
            let shims = if dice.one_in(2) { Shims::All } else { Shims::First };
            let what = Action::ShimDies(pod, shims, dice.one_in(3).then(|| dice.millis(60_000)));
            self.steps.push(Step { at, what });
            if dice.one_in(3) {
                let at = at + dice.millis(LASTS);
                let down = dice.millis(10_000);
                let what = Action::RuntimeRestarts(down);
                self.steps.push(Step { at, what });
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

impl Action {
    fn any(dice: &mut Dice, pods: usize) -> Self {
        let pod = dice.up_to(pods);
        match dice.up_to(30) {
            0..=2 => Self::Delete(pod, grace(dice)),
            3 => Self::Vanish(pod),
            4 => Self::Replace(pod),
            5 => Self::Release(pod),
            6..=10 => Self::Api(ApiFault::any(dice), verb(dice), times(dice)),
            11 => Self::ApiAway(dice.millis(40_000)),
            12 => Self::OtherCluster(dice.millis(40_000)),
            13..=15 => Self::Call(CallFault::any(dice), 1 + dice.up_to(3)),
            16 => Self::Look(ReadFault::any(dice), dice.millis(20_000)),
            17 => Self::RuntimeAway(dice.millis(30_000)),
            18 => Self::Restart(pod),
            19 if dice.one_in(2) => Self::Forget(pod),
            19 => Self::Unknown(pod),
            20 => Self::Busy(1 + dice.up_to(5)),
            21 => Self::Kubelet(dice.millis(40_000)),
            22 => Self::DiskFails(dice.millis(20_000)),
            23 => Self::Crash(dice.up_to(60), dice.millis(20_000)),
            26..=28 => Self::Stop(pod, grace(dice), Cause::any(dice)),
            24 if dice.one_in(2) => Self::CutAtWrite(dice.up_to(12)),
            24 => Self::CrashAtEffect(dice.up_to(6)),
            25 if dice.one_in(2) => Self::Reboot(dice.millis(20_000)),
            25 => Self::StopAgent(dice.millis(20_000)),
            _ => Self::Crash(dice.up_to(6), dice.millis(2_000)),
        }
    }
}

impl Cause {
    fn any(dice: &mut Dice) -> Self {
        if dice.one_in(2) { Self::Eviction } else { Self::Stop }
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

// === impl faults ===

impl ApiFault {
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

impl CallFault {
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

impl ReadFault {
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
            let (kind, grace, finalizer) = (pod.kind, pod.grace, pod.finalizer);
            let (sandboxes, volumes) = (pod.old_sandboxes, &pod.volumes);
            writeln!(
                f,
                "  p{number}: {kind:?}, grace {grace} s, finalizer {finalizer}, old sandboxes {sandboxes}, volumes {volumes:?}"
            )?;
            for (number, container) in pod.containers.iter().enumerate() {
                writeln!(f, "    c{number}: {container:?}")?;
            }
        }
        for Step { at, what } in &self.steps {
            writeln!(f, "  {:>9.3} {what:?}", at.as_secs_f64())?;
        }
        Ok(())
    }
}
