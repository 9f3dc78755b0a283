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
use crate::words::{counted, some_of};

/// What is done about a kind that may hold dependents and cannot be listed: `--gc-unsynced`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsynced {
    /// Orphaning and the end of foreground deletions wait until it can be listed.
    Hold,
    /// After some minutes they go on without it.
    Proceed,
}

/// A kind whose watch is broken for so long may hold objects that nobody has heard of.
const STALE: Duration = Duration::from_secs(30);
/// An aggregated group that cannot be reached delays foreground deletions so long, unless told otherwise.
pub const AGGREGATED_HOLD: Duration = Duration::from_secs(600);
/// For so long nothing that rests on all kinds is done while one of them cannot be seen; then the operator's word counts.
const UNSYNCED: Duration = Duration::from_secs(300);

/// Why the end of a deletion waits for a discovery.
pub const UNDISCOVERED: &str = "the kinds that are served have not been discovered since the deletion was ready to end";

/// A kind that cannot be watched for so long, or whose first list takes longer, may be of a server that cannot be reached.
const LATE: Duration = Duration::from_secs(10);

/// What is told of a kind with objects that are not in the graph.
const UNKEPT: &str = "of an object of it the UID, the name or the namespace cannot be kept";

/// See the module's documentation.
#[derive(Debug)]
pub struct Sight {
    /// The kinds that are watched.
    pub watched: BTreeMap<KindId, Watched>,
    /// Why nothing was discovered yet, and since when; nothing once discovery was answered.
    undiscovered: Option<(String, Instant)>,
    /// Groups that discovery has never told in full.
    unknown: BTreeMap<String, Unknown>,
    /// Groups and versions that another server answers for, as their APIServices say. Only those that make trouble are
    /// looked up.
    pub aggregated: BTreeSet<(String, String)>,
    /// Kinds with objects that are there and are not in the graph: their UIDs or names are none that it takes.
    pub unkept: BTreeSet<KindId>,
    unsynced: Unsynced,
    /// So long an aggregated group that cannot be reached delays foreground deletions.
    pub aggregated_hold: Duration,
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
    /// Not every kind can be seen.
    Unsynced {
        /// Why not.
        why: String,
        /// Only aggregated groups are the cause, so the wait is limited to `--gc-aggregated-hold`.
        is_delay: bool,
    },
}

/// A deletion whose end rests on all kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// One in the foreground. A dependent that is seen only afterwards is collected in the background.
    Foreground,
    /// An orphaning one. A dependent that is seen only afterwards may be deleted.
    Orphan,
}

/// Something that may hold objects that the collector has not heard of.
struct Blind<'a> {
    of: Of<'a>,
    since: Instant,
    is_aggregated: bool,
}

enum Of<'a> {
    /// All that is served.
    Everything(&'a str),
    /// A group whose kinds are not known.
    Group(&'a str, &'a Unknown),
    /// A kind.
    Kind(KindId, &'a Watched),
}

/// A group whose kinds are not known.
#[derive(Debug)]
struct Unknown {
    why: String,
    versions: Vec<String>,
    since: Instant,
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
    pub fn new(unsynced: Unsynced) -> Self {
        Self {
            watched: BTreeMap::new(),
            undiscovered: Some(("discovery has not been answered yet".to_owned(), Instant::now())),
            unknown: BTreeMap::new(),
            aggregated: BTreeSet::new(),
            unkept: BTreeSet::new(),
            unsynced,
            aggregated_hold: AGGREGATED_HOLD,
            discovered: None,
            needs_discovery: false,
        }
    }

    /// Discovery failed, because of this. What it told before still counts.
    pub fn undiscovered(&mut self, why: String) {
        if let Some((known, _)) = &mut self.undiscovered {
            *known = why;
        }
    }

    /// Records an answer of discovery. `groups` never had all their kinds reported: name, versions and reason of each.
    pub fn set_unknown<'a>(&mut self, groups: impl Iterator<Item = (&'a str, Vec<String>, String)>, now: Instant) {
        self.undiscovered = None;
        let mut before = std::mem::take(&mut self.unknown);
        for (group, versions, why) in groups {
            let since = before.remove(group).map_or(now, |known| known.since);
            self.unknown.insert(group.to_owned(), Unknown { why, versions, since });
        }
    }

    /// A discovery that began at this moment reported every kind that can be known; those that are new are watched.
    pub fn discovered(&mut self, begun: Instant) {
        self.discovered = Some(begun);
    }

    /// Why a deletion may not end yet. `ready`: when it was ready to end, if known. Only a discovery that began after that
    /// counts: a kind that was added since the last one may have a dependent.
    pub fn holds_end(&self, ending: Ending, ready: Option<Instant>, now: Instant) -> Option<Hold> {
        let proceeds = |since: Instant| self.unsynced == Unsynced::Proceed && now >= since + UNSYNCED;
        let is_late = |ready: Instant| self.discovered.is_none_or(|begun| begun < ready) && !proceeds(ready);
        if ready.is_some_and(is_late) {
            return Some(Hold::Discovery);
        }
        let delays = |it: &Blind<'_>| it.is_aggregated && ending == Ending::Foreground;
        let is_over = |it: &Blind<'_>| delays(it) && now >= it.since + self.aggregated_hold;
        let blind: Vec<Blind<'_>> = self.blind(now).filter(|it| !is_over(it)).collect();
        // Of each kind it is waited for: the last one counts.
        let last = blind.iter().map(|it| it.since).max()?;
        if proceeds(last) {
            return None;
        }
        Some(Hold::Unsynced {
            is_delay: blind.iter().all(delays),
            why: self.in_words(&blind)?,
        })
    }

    /// Whether every kind can be seen.
    pub fn sees_all(&self, now: Instant) -> bool {
        self.blind(now).next().is_none()
    }

    /// Which kinds may hold objects that nobody has heard of.
    pub fn unsynced_because(&self, now: Instant) -> Option<String> {
        let blind: Vec<Blind<'_>> = self.blind(now).collect();
        self.in_words(&blind)
    }

    /// Groups and versions, but for those of the core group, that make trouble: their servers may be others.
    pub fn troubled(&self, now: Instant) -> BTreeSet<(String, String)> {
        let unknown = self.unknown.iter().flat_map(|(group, it)| {
            let versions = it.versions.iter();
            versions.map(|version| (group.clone(), version.clone()))
        });
        let late = |it: &&Watched| {
            let begun = (!it.synced).then_some(it.begun);
            let since = it.trouble.as_ref().map(|trouble| trouble.since).or(begun);
            since.is_some_and(|since| now >= since + LATE)
        };
        let kinds = self.watched.values().filter(late);
        let kinds = kinds.map(|it| (it.group.clone(), it.resource.version.clone()));
        unknown.chain(kinds).filter(|(group, _)| !group.is_empty()).collect()
    }

    /// What may hold objects that nobody has heard of.
    fn blind(&self, now: Instant) -> impl Iterator<Item = Blind<'_>> {
        let everything = self.undiscovered.as_ref().map(|(why, since)| Blind {
            of: Of::Everything(why),
            since: *since,
            is_aggregated: false,
        });
        let groups = self.unknown.iter().map(|(group, it)| Blind {
            of: Of::Group(group, it),
            since: it.since,
            is_aggregated: !it.versions.is_empty()
                && it.versions.iter().all(|version| self.is_aggregated(group, version)),
        });
        let kinds = self.watched.iter().filter_map(move |(&id, it)| {
            let unkept = self.unkept.contains(&id).then_some(it.begun);
            Some(Blind {
                of: Of::Kind(id, it),
                since: it.unseen_since(now).or(unkept)?,
                is_aggregated: unkept.is_none() && self.is_aggregated(&it.group, &it.resource.version),
            })
        });
        everything.into_iter().chain(groups).chain(kinds)
    }

    /// Whether another server answers for this version of a group, as far as is known.
    pub fn is_aggregated(&self, group: &str, version: &str) -> bool {
        self.aggregated.contains(&(group.to_owned(), version.to_owned()))
    }

    fn in_words(&self, blind: &[Blind<'_>]) -> Option<String> {
        let (mut kinds, mut others) = (Vec::new(), Vec::new());
        for it in blind {
            match it.of {
                Of::Everything(why) => others.push(why.to_owned()),
                Of::Group(group, Unknown { why, .. }) => {
                    others.push(format!("the kinds of {group} are not known: {why}"));
                }
                Of::Kind(id, watched) => kinds.push(match &watched.trouble {
                    Some(trouble) => format!("{} ({})", watched.name(), trouble.text),
                    None if self.unkept.contains(&id) => format!("{} ({UNKEPT})", watched.name()),
                    None => watched.name(),
                }),
            }
        }
        if kinds.is_empty() {
            return others.into_iter().next();
        }
        let many = counted(kinds.len() as u64, "kind");
        Some(format!("not every kind can be seen, {many} cannot: {}", some_of(kinds)))
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
