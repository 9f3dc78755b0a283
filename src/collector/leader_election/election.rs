//! Acquires, renews and releases the Lease.

use std::time::Duration;

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    lease::{Freshness, Leases, NAME, ObservedLease, RENEW_DEADLINE, RENEW_INTERVAL, for_holder, released},
    state::Conditions,
};
use crate::api::ApiError;

/// Limit of the release. Without it, the Lease expires.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Election<'a> {
    leases: Leases<'a>,
    identity: &'a str,
    conditions: &'a watch::Sender<Conditions>,
    observed: ObservedLease,
    /// How the Lease has to be read before the next write: a cached one may be too old to replace. `None`: `observed` is this
    /// agent's own last write, and no later answer contradicts it.
    next_read: Option<Freshness>,
}

// === impl Election ===

impl<'a> Election<'a> {
    pub fn new(leases: Leases<'a>, identity: &'a str, conditions: &'a watch::Sender<Conditions>) -> Self {
        Self {
            leases,
            identity,
            conditions,
            observed: ObservedLease::new(None, Instant::now()),
            next_read: Some(Freshness::Latest),
        }
    }

    /// Never returns. While kube-controller-manager works, this agent lets the Lease expire, and any agent may take it.
    pub async fn run(&mut self) {
        loop {
            if !self.conditions.borrow().is_manager_idle(Instant::now()) {
                self.conditions.send_modify(|conditions| {
                    (conditions.view.lease, conditions.view.lease_error) = (None, None);
                });
                let mut conditions = self.conditions.subscribe();
                let is_idle = conditions.wait_for(|conditions| conditions.is_manager_idle(Instant::now()));
                // `self` has the sender: it cannot close.
                is_idle.await.ok();
                self.forget_lease();
            }
            let pause = self.step().await;
            sleep(pause).await;
        }
    }

    /// Releases the Lease, which this agent holds.
    pub async fn release(&mut self) {
        match timeout(RELEASE_TIMEOUT, self.try_release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::info!(%error, "The collector's Lease was not given back"),
            Err(_) => tracing::info!("The collector's Lease was not given back in time"),
        }
    }

    async fn try_release(&mut self) -> Result<(), ApiError> {
        loop {
            if self.next_read.is_some() {
                self.read_lease(Freshness::Latest).await?;
            }
            let lease = match &self.observed.lease {
                Some(lease) if self.observed.holder() == Some(self.identity) => released(lease),
                _ => return Ok(()),
            };
            match self.leases.write(lease).await {
                // The Lease has changed: read it and try again, within the limit.
                Err(error) if self.next_read.is_none() || error.code() == Some(409) => {
                    self.next_read = Some(Freshness::Latest);
                }
                answer => return answer.map(drop),
            }
        }
    }

    /// Runs a step; returns the pause before the next.
    async fn step(&mut self) -> Duration {
        match self.try_step().await {
            Ok(pause) => pause,
            Err(error) => {
                self.forget_lease();
                self.conditions
                    .send_modify(|conditions| conditions.view.lease_error = Some(error.to_string()));
                if self.holds_lease() {
                    // This agent holds it until its deadline.
                    return RENEW_INTERVAL;
                }
                self.set_lease_lost(format!("its Lease is unknown: {error}"));
                self.leases.wait_interval.max(error.retry_after().unwrap_or_default())
            }
        }
    }

    async fn try_step(&mut self) -> Result<Duration, ApiError> {
        // Twice: after a conflict the Lease is read again at once.
        for _ in 0..2 {
            if let Some(freshness) = self.next_read {
                self.read_lease(freshness).await?;
                let holds_lease = self.holds_lease();
                let wait = self.observed.wait(self.identity, holds_lease, Instant::now());
                if !wait.is_zero() {
                    self.next_read = Some(Freshness::Cached);
                    self.set_lease_lost(match self.observed.holder() {
                        Some(holder) => format!("{holder} holds the Lease kube-system/{NAME}"),
                        None => {
                            format!("the Lease kube-system/{NAME} is missing, and its last holder may still be active")
                        }
                    });
                    return Ok(wait.min(self.leases.wait_interval));
                }
            }
            match self.write().await {
                Ok(()) => return Ok(RENEW_INTERVAL),
                Err(error) if matches!(error.code(), Some(404 | 409)) => self.next_read = Some(Freshness::Latest),
                Err(error) => return Err(error),
            }
        }
        // Other agents write it, too.
        Ok(RENEW_INTERVAL)
    }

    /// Before the next write it is read itself: it may have been created and deleted meanwhile.
    fn forget_lease(&mut self) {
        self.next_read = Some(Freshness::Latest);
        self.observed.restart_absence(Instant::now());
    }

    async fn read_lease(&mut self, freshness: Freshness) -> Result<(), ApiError> {
        let lease = self.leases.get(NAME, freshness).await?;
        self.conditions
            .send_modify(|conditions| conditions.view.record_lease(lease.as_ref()));
        self.observed.update(lease, Instant::now());
        Ok(())
    }

    /// Acquires or renews it. The write replaces only the version that was read.
    async fn write(&mut self) -> Result<(), ApiError> {
        let lease = for_holder(self.identity, self.observed.lease.as_ref(), Timestamp::now());
        let sent = Instant::now();
        let stored = self.leases.write(lease).await?;
        self.next_read = None;
        self.conditions.send_modify(|conditions| {
            conditions.view.record_lease(Some(&stored));
            conditions.lease = Ok(Some(sent + RENEW_DEADLINE));
        });
        self.observed.update(Some(stored), Instant::now());
        Ok(())
    }

    fn holds_lease(&self) -> bool {
        self.conditions.borrow().holds_lease(Instant::now())
    }

    fn set_lease_lost(&self, why: String) {
        self.conditions
            .send_modify(|conditions| conditions.lease = Err(why.into()));
    }
}
