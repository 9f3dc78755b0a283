//! Points of a teardown, by names that are the same in every run.

use std::{collections::HashMap, fmt};

use testbed::pods::StartedPod;

/// Before or after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum When {
    Before,
    After,
}

/// One change by the agent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Step {
    pub verb: String,
    pub target: String,
    /// Its number among steps with the same name, from 1.
    pub nth: usize,
}

/// A step and its side.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Point {
    pub when: When,
    pub step: Step,
}

/// Replaces run-specific names of a pod's resources, and counts steps.
pub struct Names {
    known: Vec<(String, &'static str)>,
    containers: Vec<(String, String)>,
    counts: HashMap<(When, String, String), usize>,
}

impl Names {
    /// Names of a pod's resources, and of others.
    pub fn of(pod: &StartedPod, others: Vec<(String, &'static str)>) -> Self {
        let containers = pod.containers.iter().map(|(name, id)| (id.clone(), name.clone()));
        let own = [
            (pod.dir.display().to_string(), "DIR"),
            (pod.logs.display().to_string(), "LOGS"),
            (pod.cgroup.clone(), " of the pod "),
            (pod.sandbox_id.clone(), "sandbox"),
            (format!("/api/v1/namespaces/{}/", pod.identity.namespace), ""),
            (pod.uid().to_owned(), "UID"),
        ];
        Self {
            known: others.into_iter().chain(own).collect(),
            containers: containers.collect(),
            counts: HashMap::new(),
        }
    }

    /// The next point of the agent in this run.
    pub fn point(&mut self, when: When, verb: &str, target: &str) -> Point {
        let mut target = target.replace(['"', '(', ')', ','], "");
        for (raw, name) in &self.known {
            target = target.replace(raw, name);
        }
        for (id, name) in &self.containers {
            target = target.replace(id, name);
        }
        let target = target.trim_start_matches("/sys/fs/cgroup/").trim().to_owned();
        let nth = self.counts.entry((when, verb.to_owned(), target.clone())).or_default();
        *nth += 1;
        let step = Step {
            verb: verb.to_owned(),
            target,
            nth: *nth,
        };
        Point { when, step }
    }
}

impl Step {
    pub fn is(&self, verb: &str, target: &str) -> bool {
        self.verb == verb && self.target == target
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.target)?;
        match self.nth {
            1 => Ok(()),
            nth => write!(f, " ({nth})"),
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = match self.when {
            When::Before => "before",
            When::After => "after",
        };
        write!(f, "{when} {}", self.step)
    }
}
