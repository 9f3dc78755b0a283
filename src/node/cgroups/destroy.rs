//! How a pod's cgroup is emptied and removed, from all hierarchies, in a second or at the next attempt.

use std::time::Duration;

use nix::errno::Errno;

use super::{Cgroups, PodCgroup, group::Group, kill::Rest, slice};
use crate::node::{
    effects::{Effects, Outcome},
    fault::{Cause, Fault},
};

/// The kernel empties a cgroup a moment after its processes have died; rarely more than a few milliseconds.
const FIRST_WAIT: Duration = Duration::from_millis(1);
/// Waits double, so that all of them together take a second: then it is the next attempt's turn.
const TRIES: u32 = 10;

/// One attempt at the cgroups of a pod; blocks.
type Work = fn(&[Group], &Effects) -> Result<Outcome, Vec<Fault>>;

// === impl Cgroups ===

impl Cgroups {
    /// Kills whatever is in the pod's cgroup, and leaves the cgroup.
    pub async fn kill(&self, pod: &PodCgroup, effects: &Effects) -> Result<Outcome, Vec<Fault>> {
        self.repeatedly(pod, effects, empty).await
    }

    /// Removes the pod's cgroup from all hierarchies, and kills whatever is in it. What systemd made it stops first, or it
    /// would hold on to units without cgroups.
    pub async fn destroy(&self, pod: &PodCgroup, effects: &Effects) -> Result<Outcome, Vec<Fault>> {
        let mut done = Outcome::Nothing;
        if pod.is_slice() {
            // systemd asks processes to end, and waits for a minute and a half if they do not: none may be left to ask.
            done = done.and(self.kill(pod, effects).await?);
            let stopped = slice::stop(&self.systemd, pod, effects).await;
            done = done.and(stopped.map_err(|fault| vec![fault])?);
        }
        Ok(done.and(self.repeatedly(pod, effects, remove).await?))
    }

    async fn repeatedly(&self, pod: &PodCgroup, effects: &Effects, work: Work) -> Result<Outcome, Vec<Fault>> {
        let mut wait = FIRST_WAIT;
        let mut tries = 1;
        let mut done = Outcome::Nothing;
        loop {
            let groups: Vec<Group> = self.groups(pod).collect();
            let result = effects.run_blocking(move |effects| work(&groups, effects)).await;
            match result.unwrap_or_else(|why| Err(vec![Fault::new("remove cgroup", pod.path(), why)])) {
                // That nothing is left now may be the work of a round before.
                Ok(outcome) => return Ok(done.and(outcome)),
                Err(faults) if tries == TRIES || faults.iter().any(Fault::is_blocked) => {
                    return Err(faults);
                }
                Err(_again) => done = Outcome::Done,
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
            tries += 1;
        }
    }
}

/// One attempt to kill what is in it, in all hierarchies; done when nothing is.
fn empty(groups: &[Group], effects: &Effects) -> Result<Outcome, Vec<Fault>> {
    let (outcome, mut faults) = kill(groups.iter().collect(), effects);
    if outcome == Outcome::Done {
        faults.extend(groups.iter().filter_map(|group| group.is_empty().err()));
    }
    if faults.is_empty() { Ok(outcome) } else { Err(faults) }
}

/// One attempt to remove it from all hierarchies. Most pods' cgroups are empty by now: looking into them comes after
/// trying.
fn remove(groups: &[Group], effects: &Effects) -> Result<Outcome, Vec<Fault>> {
    let mut outcome = Outcome::Nothing;
    let mut faults = Vec::new();
    let mut busy = Vec::new();
    for group in groups {
        match group.remove(effects) {
            Ok(removed) => outcome = outcome.and(removed),
            Err(Fault {
                cause: Cause::Errno(Errno::EBUSY | Errno::ENOTEMPTY),
                ..
            }) => busy.push(group),
            Err(fault) => faults.push(fault),
        }
    }
    faults.extend(kill(busy.clone(), effects).1);
    for group in busy {
        match group.remove_tree(effects) {
            Ok(removed) => outcome = outcome.and(removed),
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() { Ok(outcome) } else { Err(faults) }
}

/// Kills what is in it, first where nobody escapes. What is then left in other hierarchies is dying, or was only there:
/// then it is the first in the next attempt.
fn kill(mut groups: Vec<&Group>, effects: &Effects) -> (Outcome, Vec<Fault>) {
    let mut outcome = Outcome::Nothing;
    let mut faults = Vec::new();
    groups.sort_by_key(|group| group.kind);
    for group in groups {
        let rest = if outcome == Outcome::Done {
            Rest::Dies
        } else {
            Rest::Lives
        };
        match group.kill(rest, effects) {
            Ok(killed) => outcome = outcome.and(killed),
            Err(fault) => faults.push(fault),
        }
    }
    (outcome, faults)
}
