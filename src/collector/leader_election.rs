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

use crate::{api::MetadataClient, model::blocked::Blocked, node::effects::Gate, why::Why};

mod controller_manager;
mod election;
mod lease;
mod state;

pub use self::state::{LeaseView, ManagerView, Mode, View};
use self::{election::Election, lease::Leases, state::Conditions};

/// Each read returns a new random UUID.
const RANDOM_UUID: &str = "/proc/sys/kernel/random/uuid";
/// The Lease that the active agent holds.
pub const LEASE: &str = "kube-system/pod-teardown-gc";
/// Interval of reads by a waiting agent.
const WAIT_INTERVAL: Duration = Duration::from_secs(5);
/// Added to the interval, by a hash of the identity, so that agents do not read at the same time.
const MAX_SPREAD: Duration = Duration::from_secs(1);

/// Since when this agent's collector is active, or why it is on standby. It does not work on standby; work in progress is
/// dropped. Another start is another period, which begins with an empty graph.
pub type CollectorRole = Result<Timestamp, Why>;

/// This agent's part in the leader election. Clones share their state.
#[derive(Clone)]
pub struct LeaderElection {
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
        let manager_idle = match mode {
            Mode::Auto => Err("kube-controller-manager's Lease is not read yet".into()),
            Mode::Always | Mode::Never => Ok(None),
        };
        let lease = match mode {
            Mode::Auto | Mode::Always => "its Lease is not read yet",
            Mode::Never => "--gc never",
        };
        let view = View {
            identity,
            mode,
            ..View::default()
        };
        let election = Self {
            conditions: watch::Sender::new(Conditions {
                manager_idle,
                lease: Err(lease.into()),
                view,
            }),
            role: watch::Sender::new(Err("it has not started".into())),
        };
        election.update_role();
        election
    }

    /// Whether the collector may write now.
    pub fn may_write(&self) -> Result<(), Blocked> {
        let conditions = self.conditions.borrow();
        let checked = conditions.check(Instant::now()).map(drop);
        checked.map_err(|why| Blocked::CollectorStandby(why.to_string()))
    }

    /// [`Self::may_write`] as a gate of the collector's effects.
    pub fn gate(&self) -> Arc<dyn Gate> {
        let election = self.clone();
        Arc::new(move || election.may_write())
    }

    /// The present role and its changes.
    pub fn watch(&self) -> watch::Receiver<CollectorRole> {
        self.role.subscribe()
    }

    /// The state for `gc status`.
    pub fn view(&self) -> View {
        let now = Instant::now();
        let conditions = self.conditions.borrow().clone();
        let standby = conditions.check(now).err().map(|why| why.to_string());
        let active_since = self.role.borrow().as_ref().ok().copied();
        View {
            active_since: active_since.filter(|_| standby.is_none()),
            standby,
            holds_lease: conditions.holds_lease(now),
            ..conditions.view
        }
    }

    /// Takes part until `stop`, which should follow the end of the collector, then releases the Lease. If this future is
    /// dropped, the active role ends at once and the Lease expires.
    pub async fn run(&self, client: &MetadataClient, stop: impl Future<Output = ()>) {
        let role_guard = RoleGuard(self);
        let View { identity, mode, .. } = self.view();
        tracing::info!(identity, %mode, lease = LEASE, "Collector started");
        if mode == Mode::Never {
            return stop.await;
        }
        let leases = Leases {
            client,
            wait_interval: wait_interval(&identity),
        };
        let mut election = Election::new(leases, &identity, &self.conditions);
        let manager = controller_manager::monitor(leases, &self.conditions);
        tokio::select! {
            () = stop => {}
            // These never return. Boxed, since they are large.
            () = Box::pin(election.run()) => {}
            () = Box::pin(manager), if mode == Mode::Auto => {}
            () = self.follow_conditions() => {}
        }
        let holds_lease = self.view().holds_lease;
        drop(role_guard);
        if holds_lease {
            election.release().await;
        }
    }

    /// Updates the role on each change of the conditions and when they expire.
    async fn follow_conditions(&self) {
        let mut conditions = self.conditions.subscribe();
        loop {
            let until = conditions.borrow_and_update().check(Instant::now()).ok().flatten();
            self.update_role();
            tokio::select! {
                // `self` has the sender: it cannot close.
                _ = conditions.changed() => {}
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
            }
        }
    }

    fn update_role(&self) {
        let checked = self.conditions.borrow().check(Instant::now()).map(drop);
        let is_known = self.role.borrow().as_ref().map(drop) == checked.as_ref().map(drop);
        if is_known {
            return;
        }
        match &checked {
            Ok(()) => {
                let View { identity, mode, .. } = self.view();
                tracing::info!(identity, %mode, lease = LEASE, "Collector is active");
            }
            Err(why) => tracing::info!(%why, "Collector is on standby"),
        }
        self.role.send_modify(|role| *role = checked.map(|()| Timestamp::now()));
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
        let stopped = Err("this agent stops".into());
        self.0.conditions.send_modify(|conditions| conditions.lease = stopped);
        self.0.update_role();
    }
}
