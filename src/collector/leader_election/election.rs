//! Gets the Lease, keeps it, and gives it back.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    ground::{Ground, Leave, extended},
    lease::{Candidate, DEADLINE, NAME, Next, RENEW_EVERY, Record, Seen, Sight, next},
    requests::{Exact, Leases},
    view::Notes,
};
use crate::{api::ApiError, collector::Mode};

/// How often those look who only wait: there may be one on every node.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Each of them takes up to so much longer, always the same, so that they do not move in step.
const SPREAD: Duration = Duration::from_secs(1);
/// For giving back; whoever waits finds out by itself after a while.
const GIVE_BACK: Duration = Duration::from_secs(5);

pub(super) struct Election<'a> {
    leases: Leases<'a>,
    identity: &'a str,
    always: bool,
    ground: &'a watch::Sender<Ground>,
    notes: &'a Notes,
    seen: Option<Seen>,
    /// What is seen is what this agent wrote, and nothing has been heard since.
    own: bool,
    /// What is cached may be too old to write over.
    exact: Exact,
    doubted: bool,
}

// === impl Election ===

impl<'a> Election<'a> {
    pub fn new(
        leases: Leases<'a>,
        identity: &'a str,
        mode: Mode,
        ground: &'a watch::Sender<Ground>,
        notes: &'a Notes,
    ) -> Self {
        Self {
            leases,
            identity,
            always: mode == Mode::Always,
            ground,
            notes,
            seen: None,
            own: false,
            exact: Exact::Now,
            doubted: false,
        }
    }

    /// Goes on for ever.
    pub async fn run(&mut self) {
        loop {
            let pause = self.step().await;
            sleep(pause).await;
        }
    }

    /// Gives the Lease back, if it is this agent's.
    pub async fn give_back(&mut self) {
        match timeout(GIVE_BACK, self.given_back()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::info!(%error, "The collector's Lease was not given back"),
            Err(_) => tracing::info!("The collector's Lease was not given back in time"),
        }
    }

    async fn given_back(&mut self) -> Result<(), ApiError> {
        loop {
            if !self.own {
                // Never begun: nothing can be this agent's.
                if self.seen.is_none() {
                    return Ok(());
                }
                self.exact = Exact::Now;
                self.look().await?;
            }
            let Some(sight @ Sight::Present(record)) = self.seen.as_ref().map(|seen| &seen.sight) else {
                return Ok(());
            };
            if record.holder != self.identity || self.doubted {
                return Ok(());
            }
            let back = Record::of(self.identity, sight, Timestamp::now()).given_back();
            match self.leases.replace(NAME, &back.object()).await {
                // Not as it was last heard of: look, and try again, as long as there is time.
                Err(error) if self.own || error.code() == Some(409) => self.own = false,
                answer => return answer.map(drop),
            }
        }
    }

    /// Does what is due, and returns how long nothing is.
    async fn step(&mut self) -> Duration {
        match self.tried().await {
            Ok(pause) => pause,
            Err(error) => {
                self.own = false;
                self.exact = Exact::Now;
                let why = format!("its Lease is unknown: {error}");
                self.notes.lease_failed(&error);
                if self.holds() {
                    // It stays this agent's until its deadline.
                    return RENEW_EVERY;
                }
                self.lost(why);
                self.often().max(error.retry_after().unwrap_or_default())
            }
        }
    }

    async fn tried(&mut self) -> Result<Duration, ApiError> {
        // Twice: whoever was told that it changed looks again at once.
        for _ in 0..2 {
            if !self.own {
                self.look().await?;
            }
            let Some(seen) = &self.seen else { break };
            let candidate = Candidate {
                identity: self.identity,
                holds: self.holds(),
                doubted: self.doubted,
                always: self.always,
            };
            match next(seen, candidate, Instant::now()) {
                Next::Wait(left) => {
                    self.waits();
                    return Ok(left.min(self.often()));
                }
                Next::Take | Next::Renew => {}
            }
            match self.write().await {
                Ok(()) => return Ok(RENEW_EVERY),
                Err(error) if matches!(error.code(), Some(404 | 409)) => {
                    self.own = false;
                    self.exact = Exact::Now;
                }
                Err(error) => return Err(error),
            }
        }
        // Others are at it, too.
        Ok(RENEW_EVERY)
    }

    async fn look(&mut self) -> Result<(), ApiError> {
        let lease = self.leases.get(NAME, self.exact).await?;
        let sight = lease.as_ref().and_then(Record::read);
        let sight = sight.map_or(Sight::Absent, Sight::Present);
        if let Sight::Present(record) = &sight
            && !record.holder.is_empty()
            && record.holder != self.identity
        {
            self.doubted = true;
        }
        self.notes.lease_seen(&sight, self.identity);
        self.seen = Some(Seen::after(self.seen.take(), sight, Instant::now()));
        Ok(())
    }

    async fn write(&mut self) -> Result<(), ApiError> {
        let Some(seen) = &self.seen else { return Ok(()) };
        let stands_by = self.stands_by();
        let record = Record::of(self.identity, &seen.sight, Timestamp::now()).standing_by(stands_by);
        // Whatever becomes of it, it replaces only what was seen: if the Lease bears this name afterwards, rightly so.
        self.doubted = false;
        let sent = Instant::now();
        let answer = match &seen.sight {
            Sight::Absent => self.leases.create(&record.object()).await?,
            Sight::Present(_) => self.leases.replace(NAME, &record.object()).await?,
        };
        let Some(stored) = record.stored(&answer) else {
            self.own = false;
            return Ok(());
        };
        let now = Instant::now();
        let sight = Sight::Present(stored);
        self.notes.lease_seen(&sight, self.identity);
        self.seen = Some(Seen {
            sight,
            since: now,
            yields: false,
        });
        self.own = true;
        self.ground.send_modify(|ground| {
            ground.firm = !stands_by;
            ground.lease = Ok(extended(&ground.lease, Some(sent + DEADLINE), now));
        });
        Ok(())
    }

    /// Whether the Lease is to say that its holder stands by. From here on this agent does not work then, whatever becomes
    /// of what is written: somebody who always works may take the Lease at once.
    fn stands_by(&self) -> bool {
        let stands_by = self.ground.borrow().stands_by(Instant::now());
        if stands_by {
            self.ground.send_if_modified(|ground| std::mem::take(&mut ground.firm));
        }
        stands_by
    }

    fn holds(&self) -> bool {
        let holds = |leave: &Leave| leave.holds(Instant::now());
        self.ground.borrow().lease.as_ref().is_ok_and(holds)
    }

    fn waits(&mut self) {
        self.exact = Exact::Cached;
        let why = match self.seen.as_ref().map(|seen| &seen.sight) {
            Some(Sight::Present(record)) => format!("{} holds the Lease kube-system/{NAME}", record.holder),
            Some(Sight::Absent) | None => {
                format!("the Lease kube-system/{NAME} is missing, and whoever held it may not know yet")
            }
        };
        self.lost(why);
    }

    fn lost(&self, why: String) {
        self.ground.send_if_modified(|ground| {
            let why = Err(why);
            let changed = ground.lease != why;
            ground.lease = why;
            changed
        });
    }

    fn often(&self) -> Duration {
        let mut hasher = DefaultHasher::new();
        self.identity.hash(&mut hasher);
        LOOK_EVERY + SPREAD.mul_f64(f64::from((hasher.finish() % 1000) as u16) / 1000.0)
    }
}
