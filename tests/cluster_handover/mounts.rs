//! Maps a mount or unmount to its side and pod. Pure.

use std::path::Path;

use testbed::recorder::mounts::{Actor, Change, Mounting};

use crate::judge::{MOUNT, Side, UNMOUNT};

/// Seconds within which an event of an exited process is received, even on a busy machine. PIDs are not reused so soon.
const RECORDER_DELAY: f64 = 5.0;

/// Processes other than the kubelet that may mount below its root.
#[derive(Debug, Clone)]
pub struct Others {
    /// Each agent that has run.
    pub agents: Vec<Agent>,
    pub runtime: i32,
    pub test: i32,
}

/// Period of an agent's PID in seconds since the start of the run: later another process may have it.
#[derive(Debug, Clone)]
pub struct Agent {
    pub pid: i32,
    pub from: f64,
    pub until: f64,
}

impl Others {
    /// A kubelet mounts by short-lived programs, which may exit before they are read and may outlive it. So unknown
    /// processes count as the kubelet's.
    pub fn side(&self, by: &Actor, at: f64) -> Option<Side> {
        let is_agent = |pid| {
            let mut agents = self.agents.iter();
            agents.any(|agent| agent.pid == pid && (agent.from..=agent.until).contains(&at))
        };
        if is_agent(by.pid) || by.parent.is_some_and(is_agent) || self.killed_before(by, at).is_some() {
            Some(Side::Agent)
        } else if by.pid == self.runtime || by.parent == Some(self.runtime) || by.pid == self.test {
            None
        } else {
            Some(Side::Kubelet)
        }
    }

    /// When the event happened at the latest: the recorder may receive it after its agent was killed.
    pub fn time(&self, by: &Actor, at: f64) -> f64 {
        self.killed_before(by, at).unwrap_or(at)
    }

    /// When the agent that made the event was killed, if that was before the event was received.
    fn killed_before(&self, by: &Actor, at: f64) -> Option<f64> {
        let received = |agent: &&Agent| (agent.until..agent.until + RECORDER_DELAY).contains(&at);
        let agent = self.agents.iter().filter(received).find(|agent| agent.pid == by.pid)?;
        // The process had exited when its event was received, so its parent is unknown.
        by.parent.is_none().then_some(agent.until)
    }
}

/// The UID in a path below the directory of all pods.
pub fn uid(pods: &Path, point: &Path) -> Option<String> {
    let first = point.strip_prefix(pods).ok()?.components().next()?;
    Some(first.as_os_str().to_str()?.to_owned())
}

/// Such as `unmount /…/volumes/… by umount (77)`.
pub fn what(mounting: &Mounting) -> String {
    let verb = match mounting.change {
        Change::Mount => MOUNT,
        Change::Unmount => UNMOUNT,
    };
    let name = mounting.by.name.as_deref().unwrap_or("what has ended");
    format!("{verb}{} by {name} ({})", mounting.point.display(), mounting.by.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side_at(pid: i32, parent: Option<i32>, at: f64) -> Option<Side> {
        let agent = |pid, from, until| Agent { pid, from, until };
        let others = Others {
            agents: vec![agent(10, 0.0, 5.0), agent(11, 5.5, f64::MAX)],
            runtime: 20,
            test: 30,
        };
        let by = Actor {
            pid,
            name: None,
            parent,
        };
        others.side(&by, at)
    }

    fn side(pid: i32, parent: Option<i32>) -> Option<Side> {
        side_at(pid, parent, 6.0)
    }

    #[test]
    fn acts_of_unknown_processes_are_the_kubelets() {
        assert_eq!(side_at(10, Some(30), 3.0), Some(Side::Agent));
        assert_eq!(side(11, Some(30)), Some(Side::Agent));
        // A program of the kubelet with the same PID.
        assert_eq!(side(10, Some(40)), Some(Side::Kubelet));
        for (pid, parent) in [(20, Some(30)), (21, Some(20)), (30, Some(1))] {
            assert_eq!(side(pid, parent), None);
        }
        for (pid, parent) in [(40, Some(30)), (41, Some(40)), (41, Some(1)), (41, None)] {
            assert_eq!(side(pid, parent), Some(Side::Kubelet));
        }
    }

    #[test]
    fn late_event_of_a_killed_agent_is_the_agents() {
        assert_eq!(side_at(10, None, 5.0 + RECORDER_DELAY / 2.0), Some(Side::Agent));
        assert_eq!(side_at(10, None, 5.0 + RECORDER_DELAY), Some(Side::Kubelet));
    }

    #[test]
    fn uid_is_the_path_component_below_the_pods_directory() {
        let uid = |point: &str| uid("/k/pods".as_ref(), point.as_ref());
        assert_eq!(uid("/k/pods/u/volumes/kubernetes.io~empty-dir/v"), Some("u".to_owned()));
        assert_eq!(uid("/k/pods"), None);
        assert_eq!(uid("/k/plugins/u"), None);
    }
}
