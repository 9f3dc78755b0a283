//! Acquires, renews and releases the Lease.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::mode::Mode;
use super::{
    conditions::{Conditions, Validity, extended},
    lease::{
        Candidate, LeaderElectionRecord, LeaseState, NAME, NextAction, ObservedLease, RENEW_DEADLINE, RENEW_INTERVAL,
        next_action,
    },
    requests::{Freshness, Leases},
    view::StatusRecord,
};
use crate::api::ApiError;

/// Interval of reads by a waiting agent: there may be one on every node.
const WAIT_INTERVAL: Duration = Duration::from_secs(5);
/// Added to the interval, by a hash of the identity, so that agents do not read at the same time.
const MAX_SPREAD: Duration = Duration::from_secs(1);
/// Limit of the release. Without it, the Lease expires.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Election<'a> {
    leases: Leases<'a>,
    identity: &'a str,
    always: bool,
    conditions: &'a watch::Sender<Conditions>,
    status: &'a StatusRecord,
    observed: Option<ObservedLease>,
    /// `observed` is this agent's own last write, and no later answer contradicts it.
    is_current: bool,
    /// A cached Lease may be too old to replace.
    freshness: Freshness,
    is_ambiguous: bool,
}

// === impl Election ===

impl<'a> Election<'a> {
    pub fn new(
        leases: Leases<'a>,
        identity: &'a str,
        mode: Mode,
        conditions: &'a watch::Sender<Conditions>,
        status: &'a StatusRecord,
    ) -> Self {
        Self {
            leases,
            identity,
            always: mode == Mode::Always,
            conditions,
            status,
            observed: None,
            is_current: false,
            freshness: Freshness::Latest,
            is_ambiguous: false,
        }
    }

    /// Never returns.
    pub async fn run(&mut self) {
        loop {
            let pause = self.step().await;
            sleep(pause).await;
        }
    }

    /// Releases the Lease if this agent holds it.
    pub async fn release(&mut self) {
        match timeout(RELEASE_TIMEOUT, self.try_release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::info!(%error, "The collector's Lease was not given back"),
            Err(_) => tracing::info!("The collector's Lease was not given back in time"),
        }
    }

    async fn try_release(&mut self) -> Result<(), ApiError> {
        loop {
            if !self.is_current {
                // Never read, so never acquired.
                if self.observed.is_none() {
                    return Ok(());
                }
                self.freshness = Freshness::Latest;
                self.read_lease().await?;
            }
            let Some(state @ LeaseState::Present(record)) = self.observed.as_ref().map(|observed| &observed.state)
            else {
                return Ok(());
            };
            if record.holder != self.identity || self.is_ambiguous {
                return Ok(());
            }
            let released = LeaderElectionRecord::for_holder(self.identity, state, Timestamp::now()).released();
            match self.leases.replace(NAME, &released.object()).await {
                // The Lease has changed: read it and try again, within the limit.
                Err(error) if self.is_current || error.code() == Some(409) => self.is_current = false,
                answer => return answer.map(drop),
            }
        }
    }

    /// Runs a step; returns the pause before the next.
    async fn step(&mut self) -> Duration {
        match self.try_step().await {
            Ok(pause) => pause,
            Err(error) => {
                self.is_current = false;
                self.freshness = Freshness::Latest;
                if let Some(observed) = &mut self.observed {
                    observed.restart_absence(Instant::now());
                }
                let why = format!("its Lease is unknown: {error}");
                self.status.record_lease_error(&error);
                if self.holds_lease() {
                    // This agent holds it until its deadline.
                    return RENEW_INTERVAL;
                }
                self.set_lease_lost(why);
                self.wait_interval().max(error.retry_after().unwrap_or_default())
            }
        }
    }

    async fn try_step(&mut self) -> Result<Duration, ApiError> {
        // Twice: after a conflict the Lease is read again at once.
        for _ in 0..2 {
            if !self.is_current {
                self.read_lease().await?;
            }
            let Some(observed) = &self.observed else { break };
            let candidate = Candidate {
                identity: self.identity,
                holds_lease: self.holds_lease(),
                is_ambiguous: self.is_ambiguous,
                always: self.always,
            };
            match next_action(observed, candidate, Instant::now()) {
                NextAction::Wait(remaining) => {
                    self.set_waiting();
                    return Ok(remaining.min(self.wait_interval()));
                }
                NextAction::Acquire | NextAction::Renew => {}
            }
            match self.write().await {
                Ok(()) => return Ok(RENEW_INTERVAL),
                Err(error) if matches!(error.code(), Some(404 | 409)) => {
                    self.is_current = false;
                    self.freshness = Freshness::Latest;
                }
                Err(error) => return Err(error),
            }
        }
        // Other agents write it, too.
        Ok(RENEW_INTERVAL)
    }

    async fn read_lease(&mut self) -> Result<(), ApiError> {
        let lease = self.leases.get(NAME, self.freshness).await?;
        let state = lease.as_ref().and_then(LeaderElectionRecord::read);
        let state = state.map_or(LeaseState::Absent, LeaseState::Present);
        if let LeaseState::Present(record) = &state
            && !record.holder.is_empty()
            && record.holder != self.identity
        {
            self.is_ambiguous = true;
        }
        self.status.record_lease(&state, self.identity);
        self.observed = Some(ObservedLease::update(self.observed.take(), state, Instant::now()));
        Ok(())
    }

    async fn write(&mut self) -> Result<(), ApiError> {
        let Some(observed) = &self.observed else { return Ok(()) };
        let is_standby = self.must_be_standby();
        let record =
            LeaderElectionRecord::for_holder(self.identity, &observed.state, Timestamp::now()).with_standby(is_standby);
        // The write replaces only the version that was read: if the Lease names this agent afterwards, it holds it.
        self.is_ambiguous = false;
        let sent = Instant::now();
        let answer = match &observed.state {
            LeaseState::Absent => self.leases.create(&record.object()).await?,
            LeaseState::Present(_) => self.leases.replace(NAME, &record.object()).await?,
        };
        let Some(stored) = record.stored(&answer) else {
            self.is_current = false;
            return Ok(());
        };
        let now = Instant::now();
        let state = LeaseState::Present(stored);
        self.status.record_lease(&state, self.identity);
        self.observed = Some(ObservedLease {
            state,
            since: now,
            may_be_acquired: false,
            has_existed: true,
        });
        self.is_current = true;
        self.conditions.send_modify(|conditions| {
            conditions.lease_shows_active = !is_standby;
            conditions.lease = Ok(extended(&conditions.lease, Some(sent + RENEW_DEADLINE), now));
        });
        Ok(())
    }

    /// Whether the Lease has to show its holder as standby. If so, this agent is standby from now on, even if the write
    /// fails: an agent with `--gc always` may take the Lease at once.
    fn must_be_standby(&self) -> bool {
        let is_standby = self.conditions.borrow().must_show_standby(Instant::now());
        if is_standby {
            self.conditions
                .send_if_modified(|conditions| std::mem::take(&mut conditions.lease_shows_active));
        }
        is_standby
    }

    fn holds_lease(&self) -> bool {
        let is_valid = |validity: &Validity| validity.is_valid(Instant::now());
        self.conditions.borrow().lease.as_ref().is_ok_and(is_valid)
    }

    fn set_waiting(&mut self) {
        self.freshness = Freshness::Cached;
        let why = match self.observed.as_ref().map(|observed| &observed.state) {
            Some(LeaseState::Present(record)) => format!("{} holds the Lease kube-system/{NAME}", record.holder),
            Some(LeaseState::Absent) | None => {
                format!("the Lease kube-system/{NAME} is missing, and its last holder may still be active")
            }
        };
        self.set_lease_lost(why);
    }

    fn set_lease_lost(&self, why: String) {
        self.conditions.send_if_modified(|conditions| {
            let why = Err(why);
            let changed = conditions.lease != why;
            conditions.lease = why;
            changed
        });
    }

    fn wait_interval(&self) -> Duration {
        let mut hasher = DefaultHasher::new();
        self.identity.hash(&mut hasher);
        WAIT_INTERVAL + MAX_SPREAD.mul_f64(f64::from((hasher.finish() % 1000) as u16) / 1000.0)
    }
}
