//! Shrinks a plan while it breaks the same invariant.

use std::time::Duration;

use testbed::scripted_cri::Manners;
use tokio::time::Instant;

use crate::{
    plan::{Action, Plan},
    pods::{Hook, State, Volume},
    runner::one,
};

/// Time limit for shrinking.
const PATIENCE: Duration = Duration::from_secs(40);

/// The smallest plan found that breaks the invariant of `broken`.
pub fn shrink(plan: &Plan, broken: &str) -> Plan {
    // Real time: there is no tokio runtime here.
    let late = Instant::now() + PATIENCE;
    shrink_fully(plan, |candidate| {
        let same = |it: String| invariant(&it) == invariant(broken);
        Instant::now() < late && one(candidate).broken.is_some_and(same)
    })
}

/// A plan that no single removal shrinks further.
fn shrink_fully(plan: &Plan, does: impl Fn(&Plan) -> bool) -> Plan {
    let mut best = plan.clone();
    loop {
        match candidates(&best).into_iter().find(&does) {
            Some(smaller) => best = smaller,
            None => return best,
        }
    }
}

/// The number of the invariant at the beginning of the message.
fn invariant(broken: &str) -> &str {
    broken.split(" at ").next().unwrap_or_default()
}

/// Plans with one element less each, the largest elements first.
fn candidates(plan: &Plan) -> Vec<Plan> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut Plan)| {
        let mut smaller = plan.clone();
        change(&mut smaller);
        all.push(smaller);
    };
    if plan.manners != Manners::Containerd {
        with(&|plan| plan.manners = Manners::Containerd);
    }
    if plan.pods.len() > 1 {
        (0..plan.pods.len()).for_each(|pod| with(&|plan| without(plan, pod)));
    }
    for step in 0..plan.steps.len() {
        with(&|plan| _ = plan.steps.remove(step));
    }
    for (number, pod) in plan.pods.iter().enumerate() {
        if pod.containers.len() > 1 {
            (0..pod.containers.len()).for_each(|it| with(&|plan| _ = plan.pods[number].containers.remove(it)));
        }
        (0..pod.volumes.len()).for_each(|it| with(&|plan| _ = plan.pods[number].volumes.remove(it)));
        if pod.volumes.contains(&Volume::Mounted) {
            with(&|plan| plan.pods[number].volumes.fill(Volume::Directory));
        }
        if pod.old_sandboxes > 0 {
            with(&|plan| plan.pods[number].old_sandboxes = 0);
        }
        if pod.finalizer {
            with(&|plan| plan.pods[number].finalizer = false);
        }
        for (it, container) in pod.containers.iter().enumerate() {
            if container.unread {
                with(&|plan| plan.pods[number].containers[it].unread = false);
            }
            if !matches!(container.hook, Hook::None) {
                with(&|plan| plan.pods[number].containers[it].hook = Hook::None);
            }
            if container.state != State::Running {
                with(&|plan| plan.pods[number].containers[it].state = State::Running);
            }
            if container
                .obeys
                .is_none_or(|(after, code)| !after.is_zero() || code != 0)
            {
                with(&|plan| plan.pods[number].containers[it].obeys = Some((Duration::ZERO, 0)));
            }
        }
    }
    all
}

/// Removes this pod and its steps.
fn without(plan: &mut Plan, gone: usize) {
    plan.pods.remove(gone);
    plan.steps.retain_mut(|step| {
        let Some(pod) = step.what.pod() else { return true };
        match (*pod).cmp(&gone) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => false,
            std::cmp::Ordering::Greater => {
                *pod -= 1;
                true
            }
        }
    });
}

impl Action {
    /// The pod of this step.
    fn pod(&mut self) -> Option<&mut usize> {
        match self {
            Self::Delete(pod, _)
            | Self::Stop(pod, ..)
            | Self::Vanish(pod)
            | Self::Replace(pod)
            | Self::Release(pod)
            | Self::Restart(pod)
            | Self::Forget(pod)
            | Self::Unknown(pod)
            | Self::ShimDies(pod, ..) => Some(pod),
            _ => None,
        }
    }
}

#[test]
fn plan_shrinks_to_its_essential_steps() {
    let does = |plan: &Plan| {
        let crashes = plan.steps.iter().any(|step| matches!(step.what, Action::Crash(..)));
        crashes && plan.pods.iter().any(|pod| pod.finalizer)
    };
    let plans = (0..2000).map(Plan::of).filter(does);
    let sizes = plans.take(20).map(|plan| {
        let small = shrink_fully(&plan, does);
        assert!(does(&small));
        (small.pods.len(), small.pods[0].containers.len(), small.steps.len())
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [(1, 1, 1); 20]);
}
