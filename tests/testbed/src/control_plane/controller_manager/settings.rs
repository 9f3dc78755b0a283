//! Selection of controllers, and their limits.

use std::time::Duration;

const COLLECTOR: &str = "garbage-collector-controller";
/// They delete the pods of nodes that are missing or do not renew their Lease. Nodes here are only names, and tests
/// decide about their pods.
const WATCHERS_OF_NODES: [&str; 3] = [
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "pod-garbage-collector-controller",
];

/// Time from a leader's exit to the expiration of its Lease.
const RENEWAL_MARGIN: Duration = Duration::from_secs(2);

/// Selection of controllers, and their limits.
#[derive(Debug, Clone)]
pub struct Settings {
    controllers: Vec<String>,
    /// Duration of the Lease, with leader election.
    leader_election: Option<Duration>,
    limits: bool,
    collecting_workers: Option<u16>,
}

impl Settings {
    /// Every controller except the garbage collector and those of nodes. Controllers that need a cloud, or missing keys,
    /// disable themselves.
    pub fn all_but_the_collector() -> Self {
        let without = WATCHERS_OF_NODES.iter().chain([&COLLECTOR]);
        Self::of(std::iter::once("*".to_owned()).chain(without.map(|name| format!("-{name}"))))
    }

    /// Only the garbage collector.
    pub fn only_the_collector() -> Self {
        Self::of([COLLECTOR.to_owned()])
    }

    fn of(controllers: impl IntoIterator<Item = String>) -> Self {
        Self {
            controllers: controllers.into_iter().collect(),
            leader_election: None,
            limits: true,
            collecting_workers: None,
        }
    }

    /// Enables leader election, with a Lease of this duration. The leader exits if it cannot renew it for almost as
    /// long, such as on a busy machine.
    #[must_use]
    pub fn with_leader_election(self, lease: Duration) -> Self {
        Self {
            leader_election: Some(lease),
            ..self
        }
    }

    /// Removes client limits: 20 requests a second, 40 for the garbage collector.
    #[must_use]
    pub fn without_limits(self) -> Self {
        Self { limits: false, ..self }
    }

    /// Number of workers of the garbage collector for deleting, and as many for orphaning; 20 by default.
    #[must_use]
    pub fn with_collecting_workers(self, workers: u16) -> Self {
        Self {
            collecting_workers: Some(workers),
            ..self
        }
    }

    /// Whether leader election is enabled.
    pub(super) fn elect(&self) -> bool {
        self.leader_election.is_some()
    }

    /// Whether the garbage collector is enabled.
    pub(super) fn collect(&self) -> bool {
        self.controllers.iter().any(|name| name == COLLECTOR)
    }

    /// The command-line flags.
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--controllers={}", self.controllers.join(",")),
            format!("--leader-elect={}", self.elect()),
            "--use-service-account-credentials=true".to_owned(),
        ];
        if let Some(lease) = self.leader_election {
            // The default is 10 of 15 s.
            let deadline = lease.saturating_sub(RENEWAL_MARGIN);
            arguments.push(format!("--leader-elect-lease-duration={}s", lease.as_secs()));
            arguments.push(format!("--leader-elect-renew-deadline={}s", deadline.as_secs()));
        }
        if !self.limits {
            // A negative rate is no limit; the burst is then ignored.
            arguments.push("--kube-api-qps=-1".to_owned());
        }
        if let Some(workers) = self.collecting_workers {
            arguments.push(format!("--concurrent-gc-syncs={workers}"));
        }
        arguments
    }
}
