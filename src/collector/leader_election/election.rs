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
    lease::{Candidate, NAME, Next, Observed, RENEW_DEADLINE, RENEW_INTERVAL, Record, Seen, next},
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
    seen: Option<Seen>,
    /// `seen` is this agent's own last write, and no later answer contradicts it.
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
            seen: None,
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
                if self.seen.is_none() {
                    return Ok(());
                }
                self.freshness = Freshness::Latest;
                self.read_lease().await?;
            }
            let Some(observed @ Observed::Present(record)) = self.seen.as_ref().map(|seen| &seen.observed) else {
                return Ok(());
            };
            if record.holder != self.identity || self.is_ambiguous {
                return Ok(());
            }
            let back = Record::of(self.identity, observed, Timestamp::now()).released();
            match self.leases.replace(NAME, &back.object()).await {
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
                let why = format!("its Lease is unknown: {error}");
                self.status.lease_failed(&error);
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
            let Some(seen) = &self.seen else { break };
            let candidate = Candidate {
                identity: self.identity,
                holds_lease: self.holds_lease(),
                is_ambiguous: self.is_ambiguous,
                always: self.always,
            };
            match next(seen, candidate, Instant::now()) {
                Next::Wait(left) => {
                    self.set_waiting();
                    return Ok(left.min(self.wait_interval()));
                }
                Next::Take | Next::Renew => {}
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
        let observed = lease.as_ref().and_then(Record::read);
        let observed = observed.map_or(Observed::Absent, Observed::Present);
        if let Observed::Present(record) = &observed
            && !record.holder.is_empty()
            && record.holder != self.identity
        {
            self.is_ambiguous = true;
        }
        self.status.lease_seen(&observed, self.identity);
        self.seen = Some(Seen::after(self.seen.take(), observed, Instant::now()));
        Ok(())
    }

    async fn write(&mut self) -> Result<(), ApiError> {
        let Some(seen) = &self.seen else { return Ok(()) };
        let stands_by = self.stands_by();
        let record = Record::of(self.identity, &seen.observed, Timestamp::now()).standing_by(stands_by);
        // The write replaces only the version that was read: if the Lease names this agent afterwards, it holds it.
        self.is_ambiguous = false;
        let sent = Instant::now();
        let answer = match &seen.observed {
            Observed::Absent => self.leases.create(&record.object()).await?,
            Observed::Present(_) => self.leases.replace(NAME, &record.object()).await?,
        };
        let Some(stored) = record.stored(&answer) else {
            self.is_current = false;
            return Ok(());
        };
        let now = Instant::now();
        let observed = Observed::Present(stored);
        self.status.lease_seen(&observed, self.identity);
        self.seen = Some(Seen {
            observed,
            since: now,
            may_be_taken: false,
        });
        self.is_current = true;
        self.conditions.send_modify(|conditions| {
            conditions.lease_shows_active = !stands_by;
            conditions.lease = Ok(extended(&conditions.lease, Some(sent + RENEW_DEADLINE), now));
        });
        Ok(())
    }

    /// Whether the Lease has to show its holder as standby. If so, this agent is standby from now on, even if the write
    /// fails: an agent with `--gc always` may take the Lease at once.
    fn stands_by(&self) -> bool {
        let stands_by = self.conditions.borrow().must_show_standby(Instant::now());
        if stands_by {
            self.conditions
                .send_if_modified(|conditions| std::mem::take(&mut conditions.lease_shows_active));
        }
        stands_by
    }

    fn holds_lease(&self) -> bool {
        let is_valid = |validity: &Validity| validity.is_valid(Instant::now());
        self.conditions.borrow().lease.as_ref().is_ok_and(is_valid)
    }

    fn set_waiting(&mut self) {
        self.freshness = Freshness::Cached;
        let why = match self.seen.as_ref().map(|seen| &seen.observed) {
            Some(Observed::Present(record)) => format!("{} holds the Lease kube-system/{NAME}", record.holder),
            Some(Observed::Absent) | None => {
                format!("the Lease kube-system/{NAME} is missing, and whoever held it may not know yet")
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
