//! Whose turn it is to collect: that of one agent in the cluster, while kube-controller-manager does not work.
//!
//! `lease → election → ground ← controller_manager`: what a turn stands on holds by the clock alone, so that a turn ends in
//! time also when nothing goes forward any more.

use std::{fs, io, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{
    api::MetadataClient,
    node::effects::{EffectGate, Held},
};

mod controller_manager;
mod election;
mod ground;
mod lease;
mod requests;
mod view;

pub use self::view::{LeaseView, ManagerView, View};
use self::{
    election::Election,
    ground::{Ground, Leave},
    requests::Leases,
    view::Notes,
};

/// The kernel makes a random UUID at each reading.
const RANDOM: &str = "/proc/sys/kernel/random/uuid";
/// The Lease of the one whose turn it is.
pub const LEASE: &str = "kube-system/pod-teardown-gc";

/// When this agent's collector may work: `--gc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// While kube-controller-manager's Lease is not renewed.
    Auto,
    /// Whether kube-controller-manager works or not.
    Always,
    /// Not at all.
    Never,
}

/// Whether this agent's collector works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// It does not: what it had begun is dropped.
    Waits {
        /// For people.
        why: String,
    },
    /// It does. Another `since` is another turn, in which nothing counts that was known before.
    Works {
        /// Since then.
        since: Instant,
    },
}

/// Says whose turn it is, and takes part in settling it; all clones are the same.
#[derive(Clone)]
pub struct Turns(Arc<Inner>);

struct Inner {
    identity: String,
    mode: Mode,
    dry_run: bool,
    ground: watch::Sender<Ground>,
    turn: watch::Sender<Turn>,
    notes: Notes,
}

/// Ends the turn when it is dropped.
struct Ends<'a>(&'a Turns);

/// What an agent on this node calls itself from this start on.
pub fn identity(node_name: &str) -> io::Result<String> {
    Ok(format!("{node_name}_{}", fs::read_to_string(RANDOM)?.trim()))
}

// === impl Turns ===

impl Turns {
    /// Nobody's turn but, in a dry run, one's own: it collects nothing.
    pub fn new(identity: String, mode: Mode, dry_run: bool) -> Self {
        let leave = Ok(Leave::for_ever(Instant::now()));
        let yet = |what: &str| Err(format!("{what} not asked for yet"));
        let (lease, alone) = match (mode, dry_run) {
            (Mode::Never, _) => (Err("--gc never".to_owned()), leave),
            (Mode::Auto | Mode::Always, true) => (leave.clone(), leave),
            (Mode::Always, false) => (yet("its Lease was"), leave),
            (Mode::Auto, false) => (yet("its Lease was"), yet("kube-controller-manager was")),
        };
        let turns = Self(Arc::new(Inner {
            identity,
            mode,
            dry_run,
            ground: watch::Sender::new(Ground {
                // Nobody reads a Lease of it.
                firm: dry_run,
                lease,
                alone,
                rests: Instant::now(),
            }),
            turn: watch::Sender::new(Turn::Waits {
                why: "not begun".to_owned(),
            }),
            notes: Notes::default(),
        }));
        turns.tell();
        turns
    }

    /// Tells the log who takes part, and how.
    pub fn introduce(&self) {
        let Inner {
            identity,
            mode,
            dry_run,
            ..
        } = &*self.0;
        tracing::info!(identity, ?mode, dry_run, lease = LEASE, "The collector begins");
    }

    /// Whether the collector may write at this moment.
    pub fn may_write(&self) -> Result<(), Held> {
        match self.0.ground.borrow().judge(Instant::now()) {
            Ok(_) => Ok(()),
            Err(why) => Err(Held {
                reason: format!("it is not this agent's turn to collect: {why}"),
            }),
        }
    }

    /// The same as the gate of the collector's effects.
    pub fn gate(&self) -> EffectGate {
        let turns = self.clone();
        Arc::new(move || turns.may_write())
    }

    /// The present turn, and its changes.
    pub fn watch(&self) -> watch::Receiver<Turn> {
        self.0.turn.subscribe()
    }

    /// For people.
    pub fn view(&self) -> View {
        let noted = self.0.notes.all();
        let now = Instant::now();
        let ground = self.0.ground.borrow().clone();
        let stands_by = ground.judge(now).err().map(str::to_owned);
        let holds_lease = noted.lease.is_some() && ground.lease.is_ok_and(|leave| leave.holds(now));
        View {
            identity: self.0.identity.clone(),
            mode: self.0.mode,
            dry_run: self.0.dry_run,
            works_since: noted.works_since.filter(|_| stands_by.is_none()),
            stands_by,
            lease: noted.lease,
            holds_lease,
            lease_error: noted.lease_error,
            controller_manager: noted.manager,
        }
    }

    /// Takes part until `stop`, which is best told when the collector has ended, and gives the turn back. Dropped, the
    /// turn ends at once, and other agents find out by themselves.
    pub async fn keep(&self, client: &MetadataClient, stop: impl Future<Output = ()>) {
        let inner = &*self.0;
        let ends = Ends(self);
        if inner.dry_run || inner.mode == Mode::Never {
            return stop.await;
        }
        let leases = Leases(client);
        let mut election = Election::new(leases, &inner.identity, inner.mode, &inner.ground, &inner.notes);
        tokio::select! {
            () = stop => {}
            // These go on for ever. Boxed, since they are large.
            () = Box::pin(election.run()) => {}
            () = Box::pin(self.monitor_controller_manager(leases)) => {}
            () = self.follow() => {}
        }
        drop(ends);
        election.give_back().await;
    }

    /// Watches kube-controller-manager while the Lease is held.
    async fn monitor_controller_manager(&self, leases: Leases<'_>) {
        let inner = &*self.0;
        if inner.mode != Mode::Auto {
            return std::future::pending().await;
        }
        loop {
            let leave = self.held().await;
            tokio::select! {
                () = controller_manager::monitor(leases, &inner.ground, &inner.notes) => {}
                () = self.lost(leave) => {}
            }
            inner.notes.not_asked();
            inner.ground.send_modify(|ground| {
                let not_asked = "kube-controller-manager was not asked for yet".to_owned();
                ground.set_alone(Err(not_asked), Instant::now());
            });
        }
    }

    /// Waits until the Lease is held.
    async fn held(&self) -> Leave {
        let mut ground = self.0.ground.subscribe();
        loop {
            let now = Instant::now();
            let leave = ground.borrow_and_update().lease.as_ref().ok().copied();
            if let Some(leave) = leave.filter(|leave| leave.holds(now)) {
                return leave;
            }
            // The sender is ours: it cannot close.
            ground.changed().await.ok();
        }
    }

    /// Waits until the Lease is not held any more, or anew.
    async fn lost(&self, held: Leave) {
        let mut ground = self.0.ground.subscribe();
        loop {
            let now = Instant::now();
            let leave = ground.borrow_and_update().lease.as_ref().ok().copied();
            let Some(leave) = leave.filter(|leave| leave.since == held.since && leave.holds(now)) else {
                return;
            };
            ends_or_changes(&mut ground, leave.until).await;
        }
    }

    /// Tells each change of the turn, also those that only the clock brings about.
    async fn follow(&self) {
        let mut ground = self.0.ground.subscribe();
        loop {
            let leave = ground.borrow_and_update().judge(Instant::now()).ok();
            self.tell();
            ends_or_changes(&mut ground, leave.and_then(|leave| leave.until)).await;
        }
    }

    fn tell(&self) {
        let turn = match self.0.ground.borrow().judge(Instant::now()) {
            Ok(leave) => Turn::Works { since: leave.since },
            Err(why) => Turn::Waits { why: why.to_owned() },
        };
        self.0.turn.send_if_modified(|before| {
            if *before == turn {
                return false;
            }
            match &turn {
                Turn::Works { .. } => {
                    let Inner {
                        identity,
                        mode,
                        dry_run,
                        ..
                    } = &*self.0;
                    tracing::info!(
                        identity,
                        ?mode,
                        dry_run,
                        lease = LEASE,
                        "The collector works from now on"
                    );
                    self.0.notes.works(Some(Timestamp::now()));
                }
                Turn::Waits { why } => {
                    tracing::info!(why, "The collector stands by");
                    self.0.notes.works(None);
                }
            }
            *before = turn;
            true
        });
    }
}

async fn ends_or_changes(ground: &mut watch::Receiver<Ground>, until: Option<Instant>) {
    let end = async {
        match until {
            Some(until) => sleep_until(until).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        // The sender lives as long as those who wait: it cannot close.
        _ = ground.changed() => {}
        () = end => {}
    }
}

// === impl Ends ===

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let stopped = "this agent stops";
        self.0
            .0
            .ground
            .send_modify(|ground| ground.lease = Err(stopped.to_owned()));
        self.0.tell();
    }
}
