//! Leader election: one agent of the cluster collects garbage, while kube-controller-manager does not.
//!
//! `controller_manager → state ← election ← lease`. Every agent watches kube-controller-manager; while that is idle, they
//! contend for a Lease. The conditions expire by the clock alone, so that the active role ends in time even if every request
//! hangs.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{api::MetadataClient, model::blocked::Blocked, node::effects::Gate};

mod controller_manager;
mod election;
mod lease;
mod state;

pub use self::state::{LeaseView, ManagerView, Mode, View};
use self::{
    election::Election,
    lease::{Freshness, Leases, ObservedLease},
    state::Conditions,
};

/// Each read returns a new random UUID.
const RANDOM_UUID: &str = "/proc/sys/kernel/random/uuid";
/// The Lease that the active agent holds.
pub const LEASE: &str = "kube-system/pod-teardown-gc";
/// Interval of reads by a waiting agent.
const WAIT_INTERVAL: Duration = Duration::from_secs(5);
/// Added to the interval, by a hash of the identity, so that agents do not read at the same time.
const MAX_SPREAD: Duration = Duration::from_secs(1);

/// Role of this agent's collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CollectorRole {
    /// It does not work; work in progress is dropped.
    Standby {
        /// Reason for `status`.
        why: String,
    },
    /// It works. Another `since` is another period, which starts with an empty graph.
    Active {
        /// Start of this period.
        since: Instant,
    },
}

/// This agent's part in the leader election. Clones share their state.
#[derive(Clone)]
pub struct LeaderElection(Arc<Inner>);

struct Inner {
    identity: String,
    mode: Mode,
    conditions: watch::Sender<Conditions>,
    role: watch::Sender<CollectorRole>,
}

/// Ends the active role on drop.
struct RoleGuard<'a>(&'a LeaderElection);

/// Identity of an agent on this node until it restarts.
pub fn identity(node_name: &str) -> io::Result<String> {
    Ok(format!("{node_name}_{}", fs::read_to_string(RANDOM_UUID)?.trim()))
}

// === impl LeaderElection ===

impl LeaderElection {
    /// Starts as standby.
    pub fn new(identity: String, mode: Mode) -> Self {
        let idle = Ok(None);
        let (manager_idle, lease) = match mode {
            Mode::Never => (idle, "--gc never"),
            Mode::Always => (idle, "its Lease is not read yet"),
            Mode::Auto => (
                Err("kube-controller-manager's Lease is not read yet".to_owned()),
                "its Lease is not read yet",
            ),
        };
        let election = Self(Arc::new(Inner {
            conditions: watch::Sender::new(Conditions {
                manager_idle,
                lease: Err(lease.to_owned()),
                view: View::new(identity.clone(), mode),
            }),
            identity,
            mode,
            role: watch::Sender::new(CollectorRole::Standby {
                why: "it has not started".to_owned(),
            }),
        }));
        election.update_role();
        election
    }

    /// Logs this agent's identity and mode.
    pub fn log_start(&self) {
        let Inner { identity, mode, .. } = &*self.0;
        tracing::info!(identity, mode = mode.name(), lease = LEASE, "Collector started");
    }

    /// Whether the collector may write now.
    pub fn may_write(&self) -> Result<(), Blocked> {
        match self.0.conditions.borrow().check(Instant::now()) {
            Ok(_) => Ok(()),
            Err(why) => Err(Blocked::CollectorStandby(why.to_owned())),
        }
    }

    /// [`Self::may_write`] as a gate of the collector's effects.
    pub fn gate(&self) -> Arc<dyn Gate> {
        let election = self.clone();
        Arc::new(move || election.may_write())
    }

    /// The present role and its changes.
    pub fn watch(&self) -> watch::Receiver<CollectorRole> {
        self.0.role.subscribe()
    }

    /// The state for `gc status`.
    pub fn view(&self) -> View {
        let now = Instant::now();
        let conditions = self.0.conditions.borrow().clone();
        let standby = conditions.check(now).err().map(str::to_owned);
        let holds_lease = conditions.holds_lease(now);
        View {
            active_since: conditions.view.active_since.filter(|_| standby.is_none()),
            standby,
            holds_lease,
            ..conditions.view
        }
    }

    /// Takes part until `stop`, which should follow the end of the collector, then releases the Lease. If this future is
    /// dropped, the active role ends at once and the Lease expires.
    pub async fn run(&self, client: &MetadataClient, stop: impl Future<Output = ()>) {
        let inner = &*self.0;
        let role_guard = RoleGuard(self);
        if inner.mode == Mode::Never {
            return stop.await;
        }
        let wait_interval = wait_interval(&inner.identity);
        let leases = Leases { client, wait_interval };
        let mut election = Election {
            leases,
            identity: &inner.identity,
            conditions: &inner.conditions,
            observed: ObservedLease::new(Instant::now()),
            is_current: false,
            freshness: Freshness::Latest,
        };
        let manager = async {
            match inner.mode {
                Mode::Auto => controller_manager::monitor(leases, &inner.conditions).await,
                Mode::Always | Mode::Never => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop => {}
            // These never return. Boxed, since they are large.
            () = Box::pin(election.run()) => {}
            () = Box::pin(manager) => {}
            () = self.follow_conditions() => {}
        }
        let holds_lease = inner.conditions.borrow().holds_lease(Instant::now());
        drop(role_guard);
        if holds_lease {
            election.release().await;
        }
    }

    /// Updates the role on each change of the conditions and when they expire.
    async fn follow_conditions(&self) {
        let mut conditions = self.0.conditions.subscribe();
        loop {
            let until = conditions.borrow_and_update().check(Instant::now()).ok().flatten();
            self.update_role();
            let expiry = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // `self` has the sender: it cannot close.
                _ = conditions.changed() => {}
                () = expiry => {}
            }
        }
    }

    fn update_role(&self) {
        let now = Instant::now();
        let before = self.0.role.borrow().clone();
        let role = match (self.0.conditions.borrow().check(now), &before) {
            (Ok(_), CollectorRole::Active { .. }) => return,
            (Ok(_), CollectorRole::Standby { .. }) => CollectorRole::Active { since: now },
            (Err(why), _) => CollectorRole::Standby { why: why.to_owned() },
        };
        if role == before {
            return;
        }
        let active_since = match &role {
            CollectorRole::Active { .. } => {
                let Inner { identity, mode, .. } = &*self.0;
                tracing::info!(identity, mode = mode.name(), lease = LEASE, "Collector is active");
                Some(Timestamp::now())
            }
            CollectorRole::Standby { why } => {
                tracing::info!(why, "Collector is on standby");
                None
            }
        };
        self.0
            .conditions
            .send_modify(|conditions| conditions.view.active_since = active_since);
        self.0.role.send_replace(role);
    }
}

fn wait_interval(identity: &str) -> Duration {
    let mut hasher = DefaultHasher::new();
    identity.hash(&mut hasher);
    WAIT_INTERVAL + MAX_SPREAD.mul_f64(f64::from((hasher.finish() % 1000) as u16) / 1000.0)
}

// === impl RoleGuard ===

impl Drop for RoleGuard<'_> {
    fn drop(&mut self) {
        let stopped = "this agent stops";
        self.0
            .0
            .conditions
            .send_modify(|conditions| conditions.lease = Err(stopped.to_owned()));
        self.0.update_role();
    }
}
