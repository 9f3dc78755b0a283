//! Looks whether another collector works, for the agent that holds the Lease.

use std::{fs, io};

use jiff::Timestamp;
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    canary::{self, Canary, LABEL, Laid},
    ground::{Ground, extended},
    requests::{Exact, Leases},
    rival::{Bird, Facts, LOOK_EVERY, Manager, ManagerLease, Opinion, Wish, opinion},
    view::{Notes, named},
};
use crate::api::ApiError;

const MANAGER: &str = "kube-controller-manager";
/// The kernel makes a random UUID at each reading.
const RANDOM: &str = "/proc/sys/kernel/random/uuid";

pub(super) struct Lookout<'a> {
    leases: Leases<'a>,
    identity: &'a str,
    canary: &'a Canary,
    ground: &'a watch::Sender<Ground>,
    notes: &'a Notes,
    facts: Facts,
    /// Holder, renewTime, transitions and resourceVersion of the controller manager's Lease.
    manager: Option<[Value; 4]>,
    laid: Option<Laid>,
}

/// A random UUID.
pub(super) fn random() -> io::Result<String> {
    fs::read_to_string(RANDOM).map(|uuid| uuid.trim().to_owned())
}

/// Deletes all canaries, as far as it can: they are known by their label.
pub(super) async fn clear_away(leases: Leases<'_>) {
    if let Err(error) = swept(leases, None).await {
        tracing::debug!(%error, "Canaries were left");
    }
}

// === impl Lookout ===

impl<'a> Lookout<'a> {
    pub fn new(
        leases: Leases<'a>,
        identity: &'a str,
        canary: &'a Canary,
        ground: &'a watch::Sender<Ground>,
        notes: &'a Notes,
    ) -> Self {
        Self {
            leases,
            identity,
            canary,
            ground,
            notes,
            facts: Facts {
                manager: None,
                canary: Bird::None,
            },
            manager: None,
            laid: None,
        }
    }

    /// Goes on for ever.
    pub async fn run(&mut self) {
        loop {
            let (manager, bird) = tokio::join!(self.look_at_manager(), self.look_at_canary());
            self.manager_seen(manager);
            self.canary_seen(bird);
            match self.publish().wish {
                Wish::Keep => {}
                Wish::Remove => self.remove().await,
                Wish::Lay => {
                    self.lay().await;
                    self.publish();
                }
            }
            sleep(LOOK_EVERY).await;
        }
    }

    fn publish(&self) -> Opinion {
        let now = Instant::now();
        let opinion = opinion(&self.facts, now);
        self.ground.send_modify(|ground| {
            let alone = match opinion.free {
                Ok(until) => Ok(extended(&ground.alone, Some(until), now)),
                Err(why) => Err(why.text().to_owned()),
            };
            ground.set_alone(alone, now);
        });
        if opinion.free.is_ok() {
            self.notes.canary(|view| view.survived = Some(Timestamp::now()));
        }
        opinion
    }

    // --- the controller manager ---

    async fn look_at_manager(&self) -> (Instant, Result<Option<Value>, ApiError>) {
        (Instant::now(), self.leases.get(MANAGER, Exact::Now).await)
    }

    fn manager_seen(&mut self, (looked, lease): (Instant, Result<Option<Value>, ApiError>)) {
        let lease = match lease {
            Ok(lease) => lease,
            Err(error) => return self.notes.manager(|view| view.error = Some(error.to_string())),
        };
        let mark = lease.as_ref().map(mark);
        let before = self.facts.manager.map(|manager| manager.lease);
        let lease = match before {
            _ if mark.is_none() => ManagerLease::Absent,
            Some(same @ ManagerLease::Same { .. }) if mark == self.manager => same,
            before => ManagerLease::Same {
                since: Instant::now(),
                changed: before.is_some(),
            },
        };
        let changed = before.is_some() && mark != self.manager;
        self.notes.manager(|view| {
            view.holder = mark.as_ref().and_then(|mark| named(mark[0].as_str()?));
            view.looked = Some(Timestamp::now());
            view.error = None;
            if changed {
                view.changed = view.looked;
            }
        });
        self.manager = mark;
        self.facts.manager = Some(Manager { looked, lease });
    }

    // --- the canary ---

    /// Whether it lives, if there is one.
    async fn look_at_canary(&self) -> Option<(Instant, Result<bool, ApiError>)> {
        let laid = self.laid.as_ref()?;
        let looked = Instant::now();
        let seen = self.leases.get(&laid.name, Exact::Now).await;
        Some((
            looked,
            seen.map(|seen| seen.is_some_and(|seen| lives(&seen["metadata"], &laid.uid))),
        ))
    }

    fn canary_seen(&mut self, seen: Option<(Instant, Result<bool, ApiError>)>) {
        let Some((sent, seen)) = seen else { return };
        match seen {
            Err(error) => self.notes.canary(|view| view.error = Some(error.to_string())),
            Ok(false) => self.vanished(),
            Ok(true) => {
                if let Bird::Lives { looked, .. } = &mut self.facts.canary {
                    *looked = sent;
                }
                self.notes.canary(|view| view.error = None);
            }
        }
    }

    fn vanished(&mut self) {
        let name = self.laid.take().map(|laid| laid.name).unwrap_or_default();
        tracing::warn!(
            canary = name,
            "Some collector works that is no agent's: it deleted a canary. This agent's stands by, and asks again"
        );
        self.facts.canary = Bird::Gone { seen: Instant::now() };
        self.notes.canary(|view| view.vanished = Some(Timestamp::now()));
    }

    /// Lays the next one, and takes up those before it.
    async fn lay(&mut self) {
        let sent = Instant::now();
        let laid = match self.laid_anew().await {
            Ok(laid) => laid,
            Err(error) => {
                tracing::debug!(error, "No canary was laid");
                return self.notes.canary(|view| view.error = Some(error));
            }
        };
        self.notes.canary(|view| {
            view.name = Some(laid.name.clone());
            view.laid = Some(Timestamp::now());
            view.error = None;
        });
        let now = Instant::now();
        let before = self.laid.replace(laid.clone());
        let follows = matches!(self.facts.canary, Bird::Lives { .. });
        self.facts.canary = Bird::Lives {
            laid: now,
            looked: sent,
            follows,
        };
        match swept(self.leases, Some(&laid)).await {
            // Whoever deletes the one before and not the next works no less.
            Ok(taken) if before.is_some_and(|before| !taken.contains(&before.uid)) => self.vanished(),
            Ok(_) => {}
            // Swept the next time.
            Err(error) => tracing::debug!(%error, "Canaries were left"),
        }
    }

    async fn laid_anew(&self) -> Result<Laid, String> {
        let text = |error: io::Error| format!("{RANDOM}: {error}");
        let (id, owner) = (random().map_err(text)?, random().map_err(text)?);
        // Before anybody can see it.
        self.canary.remember(&owner);
        let object = canary::object(&id, &owner, self.identity);
        let answer = self.leases.create(&object).await.map_err(|error| error.to_string())?;
        let text = |field: &str| answer["metadata"][field].as_str().unwrap_or_default().to_owned();
        let laid = Laid {
            name: text("name"),
            uid: text("uid"),
        };
        self.canary.remember(&laid.uid);
        Ok(laid)
    }

    async fn remove(&mut self) {
        self.facts.canary = Bird::None;
        if let Some(laid) = self.laid.take()
            && let Err(error) = self.leases.delete(&laid.name, &laid.uid).await
        {
            // Swept when the next one is laid.
            tracing::debug!(%error, "A canary was left");
        }
    }
}

/// Deletes all canaries but one, and returns the UIDs of those that lived until then.
async fn swept(leases: Leases<'_>, but: Option<&Laid>) -> Result<Vec<String>, ApiError> {
    let (mut taken, mut failed) = (Vec::new(), None);
    for canary in leases.labelled(LABEL.0, LABEL.1).await? {
        let metadata = &canary["metadata"];
        let (Some(name), Some(uid)) = (metadata["name"].as_str(), metadata["uid"].as_str()) else {
            continue;
        };
        if but.is_some_and(|but| but.uid == uid) || !lives(metadata, uid) {
            continue;
        }
        match leases.delete(name, uid).await {
            Ok(true) => taken.push(uid.to_owned()),
            Ok(false) => {}
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(taken), Err)
}

fn lives(metadata: &Value, uid: &str) -> bool {
    metadata["uid"] == uid && metadata["deletionTimestamp"].is_null()
}

/// By what a change of a Lease shows.
fn mark(lease: &Value) -> [Value; 4] {
    let spec = &lease["spec"];
    [
        spec["holderIdentity"].clone(),
        spec["renewTime"].clone(),
        spec["leaseTransitions"].clone(),
        lease["metadata"]["resourceVersion"].clone(),
    ]
}
