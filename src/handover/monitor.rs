//! Looks at the kubelet's signs of life until the agent stops, and tells the guard whose turn it is.

use std::{net::SocketAddr, ops::Range, pin::pin, time::Duration};

use futures::{
    Stream, StreamExt as _,
    stream::{FuturesUnordered, select, unfold},
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};

use super::{
    fence, healthz,
    judge::{Role, Terms, Why, first, judge, may_fence},
    probes::{Probe, Probes, State},
    report::{Fenced, TurnReport},
};
use crate::{
    api::{ApiClient, ApiError},
    clock::BootClock,
    handover::guard::Guard,
    journal::{Journal, turn::OwnTurn},
    node::systemd::Systemd,
};

/// How often it is judged, by what was seen until then.
const JUDGE: Duration = Duration::from_secs(1);
/// How often at least it is asked for its health, and its Lease looked at.
const ASK: Duration = Duration::from_secs(5);
/// An answer of the API server that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same of the look at the Node, for which all other looks wait.
const PROOF: Duration = Duration::from_secs(3);
/// Looks at processes that are further apart show nothing of what was between.
const GAP: Duration = Duration::from_secs(5);
/// The same of health and Lease: two looks, and how long they may take.
const ASK_GAP: Duration = Duration::from_secs(15);

/// How old at most what is written down of a turn is, unless it would soon be of no use.
const KEEP: Duration = Duration::from_secs(15);

/// What it takes to look.
#[derive(Clone)]
pub struct KubeletMonitor {
    /// Told whose turn it is, and asked for kubelet processes.
    pub guard: Guard,
    /// Keeps that it is this agent's turn, for the one that is started next.
    pub journal: Journal,
    /// Has the Lease.
    pub api: ApiClient,
    /// Where the kubelet tells its health, if it does.
    pub healthz: Option<SocketAddr>,
    /// `--take-over-after`.
    pub take_over_after: Duration,
    /// Tells for how long the machine is up.
    pub clock: BootClock,
    /// Stops a wedged kubelet, if it is to be.
    pub fence: Option<Systemd>,
    /// For `status`.
    pub report: watch::Sender<TurnReport>,
}

/// How long after a unit could not be stopped it is stopped again, and how often it is reported that it may not be stopped.
const FENCE_AGAIN: Duration = Duration::from_secs(60);

/// What a look has shown that takes a while.
enum Answer {
    Health(Probe),
    Lease(Result<State, String>),
}

// === impl KubeletMonitor ===

impl KubeletMonitor {
    /// Looks until it is dropped.
    pub async fn run(self) {
        let start = Instant::now();
        let mut probes = Probes::unseen(start, GAP, ASK_GAP);
        let had = self.journal.turn();
        let mut turn = first(had.as_ref(), self.take_over_after, &self.clock.now());
        if let (Role::Standby(Why::Resumes), Some(had)) = (&turn, had) {
            probes.lease = probes.lease.seen_before(Some(had.lease));
        }
        let mut ticks = interval(JUDGE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (health_now, lease_now) = (Notify::new(), Notify::new());
        let health = again(&health_now, || async { Answer::Health(self.health().await) });
        let lease = again(&lease_now, || async { Answer::Lease(self.lease().await) });
        let mut answers = pin!(select(health, lease));
        let (mut fencing, mut fence_from, mut report_from) = (FuturesUnordered::new(), start, start);
        let mut fenced = Fenced::default();
        // When all signs were last asked for because the threshold of one was over.
        let mut asked = start;
        loop {
            let due = probes.due(self.take_over_after, asked);
            tokio::select! {
                biased;
                // Pods wait: no look is waited for that comes by itself.
                () = sleep_until(due.unwrap_or(start)), if due.is_some() => {
                    asked = Instant::now();
                    self.guard.look_now();
                    health_now.notify_one();
                    lease_now.notify_one();
                }
                () = self.guard.has_looked() => {}
                _ = ticks.tick() => {}
                Some((over, answer)) = answers.next() => match answer {
                    Answer::Health(look) => probes.healthz.see(look, &over),
                    Answer::Lease(state) => probes.lease.see(state, &over),
                },
                Some(stopped) = fencing.next(), if !fencing.is_empty() => {
                    fence_from = Instant::now() + FENCE_AGAIN;
                    fenced.note(stopped);
                }
            }
            let (look, looked) = self.guard.looks();
            let lived = matches!(probes.process.look, Probe::Alive(_));
            probes.see_process(look, &looked, self.take_over_after);
            // Pods wait from the end of the process on: the threshold begins with it.
            if lived && matches!(probes.process.look, Probe::Down(_)) {
                health_now.notify_one();
                lease_now.notify_one();
            }
            let terms = Terms {
                take_over_after: self.take_over_after,
                up: self.clock.now().since_boot,
            };
            let mut next = judge(&probes, terms, &turn, Instant::now());
            if next == Role::Active && turn != Role::Active {
                next = self.unless_unproven(next, &turn).await;
            }
            self.tell(&turn, &next, &probes, &fenced);
            self.keep(&next, &probes);
            turn = next;
            if let (Role::Standby(Why::Wedged), Some(systemd)) = (&turn, &self.fence)
                && fencing.is_empty()
                && let Some(kubelet) = self.guard.kubelet()
            {
                let now = Instant::now();
                match self.may_fence(&probes) {
                    Ok(()) if now >= fence_from => fencing.push(async move { fence::stop(systemd, &kubelet).await }),
                    Err(why) if now >= report_from => {
                        report_from = now + FENCE_AGAIN;
                        fenced.note(Err(format!("{kubelet}: {why}")));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Whether a kubelet that is wedged may be stopped: it is nobody's work just now, and known to be what it seems.
    fn may_fence(&self, probes: &Probes) -> Result<(), String> {
        self.guard.leaves_alone_who_is_wedged()?;
        Ok(may_fence(probes, self.take_over_after, Instant::now())?)
    }

    /// Before anything is touched the Node is looked at once more, whatever the connection has proven when it was opened: a
    /// kubelet may have registered the Node anew since. One that is wrong holds everything by itself.
    async fn unless_unproven(&self, next: Role, before: &Role) -> Role {
        let why = match timeout(PROOF, self.guard.verify(&self.api)).await {
            Ok(Ok(()) | Err(ApiError::Held { .. })) => return next,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the API server has not answered within {PROOF:?}"),
        };
        match before {
            Role::Standby(Why::Resumes) => before.clone(),
            _ => Role::Standby(Why::Unknown(format!("whether this is still the right Node: {why}"))),
        }
    }

    async fn health(&self) -> Probe {
        match self.healthz {
            Some(at) => healthz::look(at, async || self.guard.is_kubelets_answer(at).await).await,
            None => Probe::Down("the kubelet is configured to tell its health nowhere".to_owned()),
        }
    }

    async fn lease(&self) -> Result<State, String> {
        match timeout(PATIENCE, self.api.node_lease()).await {
            Ok(state) => state.map_err(|error| error.to_string()),
            Err(_) => Err(format!("the API server has not answered within {PATIENCE:?}")),
        }
    }

    /// Writes down that it is this agent's turn: at once, and then so often that an agent that is started again knows it to
    /// have been so a moment ago.
    fn keep(&self, turn: &Role, probes: &Probes) {
        match turn {
            // What an agent before this one has kept, until it is known what that is worth.
            Role::Standby(Why::Resumes) => {}
            Role::Active if !self.guard.gives_the_node_back() => {
                let (kept, now) = (self.journal.turn(), self.clock.now());
                let every = KEEP.min(self.take_over_after / 3);
                let is_fresh = |kept: &OwnTurn| kept.at.elapsed(&now).is_some_and(|ago| ago < every);
                if kept.as_ref().is_some_and(is_fresh) {
                    return;
                }
                // Where there is none, nobody could tell later that none has renewed it.
                let lease = probes.lease.state().cloned().flatten();
                if let Some(lease) = lease.or_else(|| Some(kept?.lease)) {
                    self.journal.set_turn(Some(OwnTurn { at: now, lease }));
                }
            }
            _ => self.journal.set_turn(None),
        }
    }

    fn tell(&self, before: &Role, turn: &Role, probes: &Probes, fenced: &Fenced) {
        let report = TurnReport::of(turn, probes, fenced, &self.report.borrow(), self.clock.wall().now());
        if !before.is_as(turn) {
            let seen = report.seen();
            match turn {
                Role::Active if *before == Role::Standby(Why::Resumes) => {
                    tracing::warn!(
                        seen,
                        "No kubelet has come while this agent was started again: it goes on"
                    );
                }
                Role::Active => tracing::warn!(seen, "The kubelet is gone: this agent takes its pods down"),
                Role::Standby(why) if turn.is_wedged() => tracing::error!(%why, seen, "Standing by"),
                Role::Standby(why) => tracing::info!(%why, seen, "Standing by"),
            }
        }
        if !matches!(turn, Role::Active | Role::Standby(Why::Resumes)) {
            self.guard.may_have_a_kubelet();
        }
        self.guard.set_turn(report.stands_by.clone(), turn.is_wedged());
        self.report.send_replace(report);
    }
}

/// Looks for ever, and at once when told to, with when each look was begun and when it ended.
fn again<F: Future>(now: &Notify, look: impl Fn() -> F) -> impl Stream<Item = (Range<Instant>, F::Output)> {
    let mut ticks = interval(ASK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    unfold((ticks, look), async |(mut ticks, look)| {
        tokio::select! {
            biased;
            () = now.notified() => ticks.reset(),
            _ = ticks.tick() => {}
        }
        let began = Instant::now();
        let shown = look().await;
        Some(((began..Instant::now(), shown), (ticks, look)))
    })
}
