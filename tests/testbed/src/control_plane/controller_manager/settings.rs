//! Which controllers, and how they are limited.

const COLLECTOR: &str = "garbage-collector-controller";
/// They take a node for dead whose Lease nobody renews, and delete the pods of nodes that are dead or not there: nodes
/// here are names, and what becomes of their pods is the test's affair.
const WATCHERS_OF_NODES: [&str; 3] = [
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "pod-garbage-collector-controller",
];

/// Which controllers, and how.
#[derive(Debug, Clone)]
pub struct Settings {
    controllers: Vec<String>,
    leader_election: bool,
    limits: bool,
    collecting_workers: Option<u16>,
}

// === impl Settings ===

impl Settings {
    /// Every controller but the garbage collector and those that watch over nodes. Those that need a cloud, or keys that
    /// are not here, leave themselves out.
    pub fn all_but_the_collector() -> Self {
        let without = WATCHERS_OF_NODES.iter().chain([&COLLECTOR]);
        Self::of(std::iter::once("*".to_owned()).chain(without.map(|name| format!("-{name}"))))
    }

    /// The garbage collector and nothing else.
    pub fn only_the_collector() -> Self {
        Self::of([COLLECTOR.to_owned()])
    }

    fn of(controllers: impl IntoIterator<Item = String>) -> Self {
        Self {
            controllers: controllers.into_iter().collect(),
            leader_election: false,
            limits: true,
            collecting_workers: None,
        }
    }

    /// They wait until they lead.
    #[must_use]
    pub fn with_leader_election(self) -> Self {
        Self {
            leader_election: true,
            ..self
        }
    }

    /// Lifts the limits that each client sets itself: 20 requests a second, 40 for those with which garbage is collected.
    #[must_use]
    pub fn without_limits(self) -> Self {
        Self { limits: false, ..self }
    }

    /// How many workers the garbage collector has for deleting, and as many for orphaning: 20 if nothing is said.
    #[must_use]
    pub fn with_collecting_workers(self, workers: u16) -> Self {
        Self {
            collecting_workers: Some(workers),
            ..self
        }
    }

    /// They elect a leader.
    pub(super) fn elect(&self) -> bool {
        self.leader_election
    }

    /// The garbage collector is among them.
    pub(super) fn collect(&self) -> bool {
        self.controllers.iter().any(|name| name == COLLECTOR)
    }

    /// The flags that say so.
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--controllers={}", self.controllers.join(",")),
            format!("--leader-elect={}", self.leader_election),
            "--use-service-account-credentials=true".to_owned(),
        ];
        if !self.limits {
            // Less than nothing is no limit; the burst then counts for nothing.
            arguments.push("--kube-api-qps=-1".to_owned());
        }
        if let Some(workers) = self.collecting_workers {
            arguments.push(format!("--concurrent-gc-syncs={workers}"));
        }
        arguments
    }
}
