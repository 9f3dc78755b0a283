//! Leader election: one agent of the cluster collects garbage, while kube-controller-manager does not.
//!
//! `lease → election → conditions ← controller_manager`. The conditions expire by the clock alone, so that the active role
//! ends in time even if every request hangs.

use std::{fs, io, sync::Arc};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{
    api::MetadataClient,
    node::effects::{EffectGate, EffectsBlocked},
};

mod conditions;
mod controller_manager;
mod election;
mod lease;
mod mode;
mod requests;
mod view;

use self::{
    conditions::{Conditions, Validity},
    election::Election,
    requests::Leases,
    view::StatusRecord,
};
pub use self::{
    mode::Mode,
    view::{LeaseView, ManagerView, View},
};

/// Each read returns a new random UUID.
const RANDOM_UUID: &str = "/proc/sys/kernel/random/uuid";
/// The Lease that the active agent holds.
pub const LEASE: &str = "kube-system/pod-teardown-gc";

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
    status: StatusRecord,
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
        let validity = Ok(Validity::unlimited(Instant::now()));
        let not_yet = |what: &str| Err(format!("{what} not read yet"));
        let (lease, manager_idle) = match mode {
            Mode::Never => (Err("--gc never".to_owned()), validity),
            Mode::Always => (not_yet("its Lease is"), validity),
            Mode::Auto => (not_yet("its Lease is"), not_yet("kube-controller-manager's Lease is")),
        };
        let election = Self(Arc::new(Inner {
            identity,
            mode,
            conditions: watch::Sender::new(Conditions {
                lease_shows_active: false,
                lease,
                manager_idle,
                manager_idle_until: Instant::now(),
            }),
            role: watch::Sender::new(CollectorRole::Standby {
                why: "it has not started".to_owned(),
            }),
            status: StatusRecord::default(),
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
    pub fn may_write(&self) -> Result<(), EffectsBlocked> {
        match self.0.conditions.borrow().check(Instant::now()) {
            Ok(_) => Ok(()),
            Err(why) => Err(EffectsBlocked {
                reason: format!("the collector of this agent is on standby: {why}"),
            }),
        }
    }

    /// [`Self::may_write`] as a gate of the collector's effects.
    pub fn gate(&self) -> EffectGate {
        let election = self.clone();
        Arc::new(move || election.may_write())
    }

    /// The present role and its changes.
    pub fn watch(&self) -> watch::Receiver<CollectorRole> {
        self.0.role.subscribe()
    }

    /// The state for `gc status`.
    pub fn view(&self) -> View {
        let recorded = self.0.status.all();
        let now = Instant::now();
        let conditions = self.0.conditions.borrow().clone();
        let standby = conditions.check(now).err().map(str::to_owned);
        let holds_lease = recorded.lease.is_some() && conditions.lease.is_ok_and(|validity| validity.is_valid(now));
        View {
            identity: self.0.identity.clone(),
            mode: self.0.mode,
            active_since: recorded.active_since.filter(|_| standby.is_none()),
            standby,
            lease: recorded.lease,
            holds_lease,
            lease_error: recorded.lease_error,
            controller_manager: recorded.manager,
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
        let leases = Leases(client);
        let mut election = Election::new(leases, &inner.identity, inner.mode, &inner.conditions, &inner.status);
        tokio::select! {
            () = stop => {}
            // These never return. Boxed, since they are large.
            () = Box::pin(election.run()) => {}
            () = Box::pin(self.monitor_controller_manager(leases)) => {}
            () = self.follow_conditions() => {}
        }
        drop(role_guard);
        election.release().await;
    }

    /// Watches kube-controller-manager while the Lease is held.
    async fn monitor_controller_manager(&self, leases: Leases<'_>) {
        let inner = &*self.0;
        if inner.mode != Mode::Auto {
            return std::future::pending().await;
        }
        loop {
            let validity = self.wait_for_lease().await;
            tokio::select! {
                () = controller_manager::monitor(leases, &inner.conditions, &inner.status) => {}
                () = self.wait_for_lease_loss(validity) => {}
            }
            inner.status.clear_manager();
            inner.conditions.send_modify(|conditions| {
                let not_asked = "kube-controller-manager's Lease is not read yet".to_owned();
                conditions.set_manager_idle(Err(not_asked), Instant::now());
            });
        }
    }

    /// Waits until the Lease is held.
    async fn wait_for_lease(&self) -> Validity {
        let mut conditions = self.0.conditions.subscribe();
        loop {
            let now = Instant::now();
            let validity = conditions.borrow_and_update().lease.as_ref().ok().copied();
            if let Some(validity) = validity.filter(|validity| validity.is_valid(now)) {
                return validity;
            }
            // `self` has the sender: it cannot close.
            conditions.changed().await.ok();
        }
    }

    /// Waits until the Lease is lost, even if this agent has acquired it again.
    async fn wait_for_lease_loss(&self, held: Validity) {
        let mut conditions = self.0.conditions.subscribe();
        loop {
            let now = Instant::now();
            let validity = conditions.borrow_and_update().lease.as_ref().ok().copied();
            let Some(validity) = validity.filter(|validity| validity.since == held.since && validity.is_valid(now))
            else {
                return;
            };
            wait_for_change(&mut conditions, validity.until).await;
        }
    }

    /// Updates the role on each change of the conditions and when they expire.
    async fn follow_conditions(&self) {
        let mut conditions = self.0.conditions.subscribe();
        loop {
            let validity = conditions.borrow_and_update().check(Instant::now()).ok();
            self.update_role();
            wait_for_change(&mut conditions, validity.and_then(|validity| validity.until)).await;
        }
    }

    fn update_role(&self) {
        let role = match self.0.conditions.borrow().check(Instant::now()) {
            Ok(validity) => CollectorRole::Active { since: validity.since },
            Err(why) => CollectorRole::Standby { why: why.to_owned() },
        };
        self.0.role.send_if_modified(|before| {
            if *before == role {
                return false;
            }
            match &role {
                CollectorRole::Active { .. } => {
                    let Inner { identity, mode, .. } = &*self.0;
                    tracing::info!(identity, mode = mode.name(), lease = LEASE, "Collector is active");
                    self.0.status.set_active_since(Some(Timestamp::now()));
                }
                CollectorRole::Standby { why } => {
                    tracing::info!(why, "Collector is on standby");
                    self.0.status.set_active_since(None);
                }
            }
            *before = role;
            true
        });
    }
}

async fn wait_for_change(conditions: &mut watch::Receiver<Conditions>, until: Option<Instant>) {
    let end = async {
        match until {
            Some(until) => sleep_until(until).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        // The callers have the sender: it cannot close.
        _ = conditions.changed() => {}
        () = end => {}
    }
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
