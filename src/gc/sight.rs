//! Which kinds can be seen, and what rests on all of them as long as one cannot.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    kinds::{KindId, Resource},
    names::dotted,
};
use crate::{
    cli::UnsyncedFlag,
    words::{counted, some_of},
};

/// A kind whose watch is broken for so long may hold objects that nobody has heard of.
const STALE: Duration = Duration::from_secs(30);
/// For so long nothing that rests on all kinds is done while one of them cannot be seen; then the operator's word counts.
const UNSYNCED: Duration = Duration::from_secs(300);

/// Why the end of a deletion waits for a discovery.
pub const UNDISCOVERED: &str = "the kinds that are served have not been discovered since the deletion was ready to end";

/// What is told of a kind with objects that are not in the graph.
const UNKEPT: &str = "of an object of it the UID, the name or the namespace cannot be kept";

/// See the module's documentation.
#[derive(Debug)]
pub struct Sight {
    /// The kinds that are watched.
    pub watched: BTreeMap<KindId, Watched>,
    /// Why there may be kinds that nobody knows of, and since when; nothing if discovery told all.
    undiscovered: Option<(String, Instant)>,
    /// Kinds with objects that are there and are not in the graph: their UIDs or names are none that it takes.
    pub unkept: BTreeSet<KindId>,
    unsynced: UnsyncedFlag,
    /// When the last discovery began that reported every kind.
    discovered: Option<Instant>,
    /// Another discovery is needed before the next one is due.
    pub needs_discovery: bool,
}

/// Where the watch of a kind stands.
#[derive(Debug)]
pub struct Watched {
    /// Its group, empty for the core one.
    pub group: String,
    /// Where it is served.
    pub resource: Resource,
    /// Since when it is to be watched there.
    pub begun: Instant,
    /// Its first list is complete.
    pub synced: bool,
    /// The highest resourceVersion that it told.
    pub progress: u64,
    /// When it last told anything.
    pub told: Option<Instant>,
    /// What it fails by.
    pub trouble: Option<Trouble>,
}

/// Why the end of a deletion waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// No discovery has begun since the deletion was ready to end.
    Discovery,
    /// Not every kind can be seen, because of this.
    Unsynced(String),
}

/// What a watch fails by.
#[derive(Debug)]
pub struct Trouble {
    /// The last error.
    pub text: String,
    /// The same of all kinds that fail alike.
    pub reason: String,
    /// Since when.
    pub since: Instant,
}

// === impl Sight ===

impl Sight {
    /// Nothing can be seen yet.
    pub fn new(unsynced: UnsyncedFlag) -> Self {
        Self {
            watched: BTreeMap::new(),
            undiscovered: Some(("discovery has not been answered yet".to_owned(), Instant::now())),
            unkept: BTreeSet::new(),
            unsynced,
            discovered: None,
            needs_discovery: false,
        }
    }

    /// A discovery that began at this moment reported every kind; those that are new are watched.
    pub fn discovered(&mut self, begun: Instant) {
        self.discovered = Some(begun);
    }

    /// Why the end of a deletion waits that was ready to end at `ready`, and whose end rests on all kinds. A kind that was
    /// defined since the last discovery may hold a dependent, so only a discovery that began later counts.
    pub fn holds_end(&self, ready: Instant, now: Instant) -> Option<Hold> {
        let is_late = self.unsynced == UnsyncedFlag::Proceed && now >= ready + UNSYNCED;
        if !is_late && self.discovered.is_none_or(|begun| begun < ready) {
            return Some(Hold::Discovery);
        }
        self.held(now).map(Hold::Unsynced)
    }

    /// Why what rests on all kinds cannot be done now.
    pub fn held(&self, now: Instant) -> Option<String> {
        let why = self.unsynced_because(now)?;
        let unseen = self.unseen(now).map(|(.., since)| since);
        let undiscovered = self.undiscovered.as_ref().map(|(_, since)| *since);
        // Of each kind it is waited for: the last one counts.
        let last = unseen.chain(undiscovered).max();
        let is_over = last.is_some_and(|last| now >= last + UNSYNCED);
        (self.unsynced == UnsyncedFlag::Hold || !is_over).then_some(why)
    }

    /// There may be kinds that nobody knows of, because of this; nothing if discovery told all.
    pub fn set_undiscovered(&mut self, why: Option<String>) {
        let since = self.undiscovered.take().map_or_else(Instant::now, |(_, since)| since);
        self.undiscovered = why.map(|why| (why, since));
    }

    /// Whether there may be kinds that nobody knows of.
    pub fn is_undiscovered(&self) -> bool {
        self.undiscovered.is_some()
    }

    /// The kinds that may hold objects that nobody has heard of, and since when.
    fn unseen(&self, now: Instant) -> impl Iterator<Item = (KindId, &Watched, Instant)> {
        self.watched.iter().filter_map(move |(id, it)| {
            let unkept = self.unkept.contains(id).then_some(it.begun);
            Some((*id, it, it.unseen_since(now).or(unkept)?))
        })
    }

    /// Which kinds may hold objects that nobody has heard of.
    pub fn unsynced_because(&self, now: Instant) -> Option<String> {
        let names: Vec<String> = self
            .unseen(now)
            .map(|(id, it, _)| match &it.trouble {
                Some(trouble) => format!("{} ({})", it.name(), trouble.text),
                None if self.unkept.contains(&id) => format!("{} ({UNKEPT})", it.name()),
                None => it.name(),
            })
            .collect();
        match (&self.undiscovered, names.is_empty()) {
            (None, true) => None,
            (Some((why, _)), true) => Some(why.clone()),
            (_, false) => {
                let many = counted(names.len() as u64, "kind");
                Some(format!("not every kind can be seen, {many} cannot: {}", some_of(names)))
            }
        }
    }
}

// === impl Watched ===

impl Watched {
    /// What it is called for people.
    pub fn name(&self) -> String {
        dotted(&self.resource.plural, &self.group)
    }

    /// Since when it may hold objects that nobody has heard of; nothing if it does not.
    fn unseen_since(&self, now: Instant) -> Option<Instant> {
        if !self.synced {
            return Some(self.begun);
        }
        let since = self.trouble.as_ref()?.since;
        (now >= since + STALE).then_some(since)
    }
}
