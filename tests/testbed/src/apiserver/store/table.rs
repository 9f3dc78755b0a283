//! The objects of one kind, and what happened to them lately.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use tokio::sync::watch;

use crate::apiserver::history::{Change, Event};
use crate::apiserver::stored::{ByKey, Stored};

/// The objects of one kind and what happened to them lately.
#[derive(Debug)]
pub struct Table {
    pub(super) objects: BTreeSet<ByKey>,
    pub(super) events: VecDeque<Event>,
    /// How many events have ever been dropped from the front.
    pub(super) dropped: u64,
    /// Nothing is known about what happened up to this version.
    pub(super) floor: u64,
    pub(super) changed: watch::Sender<()>,
    /// Number of resets.
    pub(super) life: u64,
}

/// What is wrong with a version that a client wants to start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// The oldest version that is still possible.
    pub floor: u64,
}

impl Table {
    pub(super) fn new(floor: u64) -> Self {
        Table {
            objects: BTreeSet::new(),
            events: VecDeque::new(),
            dropped: 0,
            floor,
            changed: watch::Sender::new(()),
            life: 0,
        }
    }

    /// Wakes the watches of this table at each change.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The objects whose key starts with `prefix`, from `start` on, in order.
    pub fn range<'a>(&'a self, prefix: &str, start: &str) -> impl Iterator<Item = &'a Arc<Stored>> + use<'a> {
        let start = if start > prefix { start } else { prefix };
        let range = self.objects.range::<str, _>((Bound::Included(start), Bound::Unbounded));
        let prefix = prefix.to_owned();
        range
            .map(|ByKey(object)| object)
            .take_while(move |object| object.key().starts_with(&prefix))
    }

    /// As [`Table::range`], but as it was at `version`, which is not in the future.
    pub fn range_at<'a>(
        &'a self,
        prefix: &str,
        start: &str,
        version: u64,
    ) -> Result<impl Iterator<Item = &'a Arc<Stored>> + use<'a>, Compacted> {
        self.check(version)?;
        let mut then: BTreeMap<&str, Option<&Arc<Stored>>> = BTreeMap::new();
        // From the newest back: the oldest change after `version` decides what was there.
        for event in self.after(version) {
            let key = event.object.key();
            if key.starts_with(prefix) && key >= start {
                then.insert(key, event.previous.as_ref());
            }
        }
        let mut then = then.into_iter().peekable();
        let mut now = self.range(prefix, start).peekable();
        Ok(std::iter::from_fn(move || {
            loop {
                let order = match (then.peek(), now.peek()) {
                    (Some((key, _)), Some(object)) => (*key).cmp(object.key()),
                    (Some(_), None) => Ordering::Less,
                    (None, _) => Ordering::Greater,
                };
                if order == Ordering::Greater {
                    return now.next();
                }
                if order == Ordering::Equal {
                    now.next();
                }
                if let Some((_, Some(object))) = then.next() {
                    return Some(object);
                }
            }
        }))
    }

    /// How many objects there were at `version`, as far as is still known.
    pub fn len_at(&self, version: u64) -> usize {
        self.after(version)
            .fold(self.objects.len(), |len, event| match event.change {
                Change::Added => len.saturating_sub(1),
                Change::Modified => len,
                Change::Deleted => len + 1,
            })
    }

    fn after(&self, version: u64) -> impl Iterator<Item = &Event> {
        self.events
            .iter()
            .rev()
            .take_while(move |event| event.version > version)
    }

    /// Whether everything after `version` is still known.
    pub fn check(&self, version: u64) -> Result<(), Compacted> {
        if version < self.floor {
            Err(Compacted { floor: self.floor })
        } else {
            Ok(())
        }
    }

    /// Number of resets.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The place in the history after the last event.
    pub fn end(&self) -> u64 {
        self.dropped + self.events.len() as u64
    }

    /// The events from `place` on, or `None` if some of them were dropped.
    pub fn since(&self, place: u64) -> Option<impl Iterator<Item = &Event>> {
        let skip = usize::try_from(place.checked_sub(self.dropped)?).ok()?;
        Some(self.events.iter().skip(skip))
    }

    /// The place in the history of the first event after `version`.
    pub fn place_after(&self, version: u64) -> u64 {
        self.dropped + self.events.partition_point(|event| event.version <= version) as u64
    }
}
