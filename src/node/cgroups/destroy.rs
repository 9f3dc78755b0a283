//! Kills the processes of a pod's cgroup and removes it from all hierarchies. One attempt takes at most a second.

use std::time::Duration;

use nix::errno::Errno;

use super::{Cgroups, PodCgroup, group::Group, kill::KILL, slice};
use crate::node::{
    effects::{Effects, Outcome},
    fault::Fault,
};

/// The kernel empties a cgroup shortly after its processes exit, rarely later than a few milliseconds.
const FIRST_WAIT: Duration = Duration::from_millis(1);
/// Waits double, so that all of them together take a second. After that the pod is retried.
const MAX_TRIES: u32 = 10;

/// One attempt at the cgroups of a pod. Blocks.
type Attempt = fn(&[Group], &Effects) -> Result<Outcome, Vec<Fault>>;

// === impl Cgroups ===

impl Cgroups {
    /// Kills all processes in the pod's cgroup, and keeps the cgroup.
    pub async fn kill(&self, pod: &PodCgroup, effects: &Effects) -> Result<Outcome, Vec<Fault>> {
        self.retry(pod, effects, kill_processes).await
    }

    /// Kills all processes in the pod's cgroup and removes it from all hierarchies. A slice is stopped first, so that
    /// systemd does not keep a unit without a cgroup.
    pub async fn destroy(&self, pod: &PodCgroup, effects: &Effects) -> Result<Outcome, Vec<Fault>> {
        let mut done = Outcome::Nothing;
        if pod.is_slice() {
            // systemd sends SIGTERM and waits up to 90 s for processes to exit, so it must find none.
            done = done.and(self.kill(pod, effects).await?);
            // Boxed: calls on D-Bus take kilobytes, which every caller would reserve also without systemd.
            let stopped = Box::pin(slice::stop(&self.systemd, pod, effects)).await;
            done = done.and(stopped?);
        }
        Ok(done.and(self.retry(pod, effects, remove).await?))
    }

    async fn retry(&self, pod: &PodCgroup, effects: &Effects, work: Attempt) -> Result<Outcome, Vec<Fault>> {
        let (mut wait, mut tries, mut done) = (FIRST_WAIT, 1, Outcome::Nothing);
        loop {
            let groups: Vec<Group> = self.cgroups_of(pod).collect();
            let result = effects.run_blocking(move |effects| work(&groups, effects)).await;
            match result.unwrap_or_else(|why| Err(vec![Fault::new("remove cgroup", pod.path(), why)])) {
                // An earlier round may have removed it.
                Ok(outcome) => return Ok(done.and(outcome)),
                Err(faults) if tries == MAX_TRIES || faults.iter().any(Fault::is_blocked) => {
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

/// One attempt to kill all processes in all hierarchies. `Done` if none is left.
fn kill_processes(groups: &[Group], effects: &Effects) -> Result<Outcome, Vec<Fault>> {
    let (outcome, mut faults) = kill(groups.iter().collect(), effects);
    if outcome == Outcome::Done {
        faults.extend(groups.iter().filter_map(|group| group.check_no_processes(KILL).err()));
    }
    if faults.is_empty() { Ok(outcome) } else { Err(faults) }
}

/// One attempt to remove the cgroup from all hierarchies. Most pod cgroups are empty by now, so processes are listed only
/// if removal fails.
fn remove(groups: &[Group], effects: &Effects) -> Result<Outcome, Vec<Fault>> {
    let mut busy = Vec::new();
    let removed = groups.iter().filter_map(|group| match group.remove(effects) {
        Err(fault) if matches!(fault.errno(), Some(Errno::EBUSY | Errno::ENOTEMPTY)) => {
            busy.push(group);
            None
        }
        done => Some(done),
    });
    let (removed, mut faults) = Outcome::collect(removed);
    faults.extend(kill(busy.clone(), effects).1);
    let (emptied, remaining) = Outcome::collect(busy.into_iter().map(|group| group.remove_tree(effects)));
    faults.extend(remaining);
    let outcome = removed.and(emptied);
    if faults.is_empty() { Ok(outcome) } else { Err(faults) }
}

/// Kills all processes, first in the hierarchy that no fork can escape. Processes found afterwards in other hierarchies
/// are exiting, or exist only there; the next attempt starts with those.
fn kill(mut groups: Vec<&Group>, effects: &Effects) -> (Outcome, Vec<Fault>) {
    groups.sort_by_key(|group| group.kind);
    Outcome::collect(groups.into_iter().map(|group| group.kill(effects)))
}
