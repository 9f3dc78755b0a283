//! Counts waiting deletions and unresolved references. It visits a part of all nodes per call, so that the lock is held
//! for a short time only.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::{
    graph::{Graph, NodeId},
    uid::Uid,
};

/// Nodes per call. There is one call a second.
const NODES_PER_CALL: usize = 20_000;
/// Maximum number of deletions whose start is remembered.
const MAX_WAITING: usize = 10_000;

/// Result of a complete count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Objects in foreground deletion that wait for dependents.
    pub foreground: u64,
    /// Objects in orphan deletion that wait for dependents to drop their references.
    pub orphan: u64,
    /// The longest that one of these has been waiting.
    pub longest: Duration,
    /// References that cannot be resolved: the owner's kind is not served, or its name is invalid.
    pub unresolved: u64,
}

/// A count in progress, and since when each deletion has been waiting.
#[derive(Debug, Default)]
pub struct Census {
    /// The next index.
    next: usize,
    pass: u64,
    tally: Tally,
    waiting: HashMap<(NodeId, Uid), WaitingDeletion>,
}

#[derive(Debug)]
struct WaitingDeletion {
    since: Instant,
    pass: u64,
}

// === impl Census ===

impl Census {
    /// Counts the next part. Returns the result after the last part, and starts again.
    pub fn advance(&mut self, graph: &Graph, now: Instant) -> Option<Tally> {
        for id in graph.nodes_at(self.next..self.next + NODES_PER_CALL) {
            self.count(graph, id, now);
        }
        self.next += NODES_PER_CALL;
        if self.next < graph.slots() {
            return None;
        }
        self.next = 0;
        let pass = self.pass;
        self.pass += 1;
        self.waiting.retain(|_, deletion| deletion.pass == pass);
        let oldest = self.waiting.values().map(|deletion| deletion.since).min();
        let tally = std::mem::take(&mut self.tally);
        Some(Tally {
            longest: oldest.map_or(Duration::ZERO, |since| now.saturating_duration_since(since)),
            ..tally
        })
    }

    fn count(&mut self, graph: &Graph, id: NodeId, now: Instant) {
        let node = graph.node(id);
        if graph.is_unresolved(id) {
            self.tally.unresolved += u64::from(node.dependents);
        }
        // An object of an unserved kind is unknown.
        if !node.state.exists() {
            return;
        }
        if node.state.in_orphan_deletion() {
            self.tally.orphan += 1;
        } else if node.state.in_foreground_deletion() {
            self.tally.foreground += 1;
        } else {
            return;
        }
        let pass = self.pass;
        let key = (id, node.uid);
        if let Some(deletion) = self.waiting.get_mut(&key) {
            deletion.pass = pass;
        } else if self.waiting.len() < MAX_WAITING {
            self.waiting.insert(key, WaitingDeletion { since: now, pass });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collector::graph::{Observed, Reference};

    #[tokio::test(start_paused = true)]
    async fn waiting_deletions_are_counted_in_parts_until_they_end() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut graph = Graph::default();
        let kind = graph.kinds.id("", "Pod").unwrap();
        let uid = |number: usize| format!("00000000-0000-4000-8000-{number:012}");
        let mut insert = |number: usize, foreground, orphan, owner: Option<&str>| {
            let reference = |kind: &str| Reference {
                api_version: "v1".to_owned(),
                kind: kind.to_owned(),
                name: "x".to_owned(),
                uid: uid(9_999_999),
                blocking: false,
            };
            let object = Observed {
                uid: uid(number),
                name: number.to_string(),
                namespace: "default".to_owned(),
                version: "1".to_owned(),
                deleting: true,
                foreground,
                orphan,
                owners: owner.map(reference).into_iter().collect(),
            };
            graph.observe(kind, &object);
        };
        for number in 0..NODES_PER_CALL + 5 {
            insert(number, number < 3, number == 3, (number == 4).then_some("Nowhere"));
        }
        let mut census = Census::default();
        assert_eq!(census.advance(&graph, now), None);
        let mut expected = Tally {
            foreground: 3,
            orphan: 1,
            longest: Duration::from_secs(1),
            unresolved: 1,
        };
        assert_eq!(census.advance(&graph, at(1)), Some(expected));
        for number in [0, 1, 3] {
            graph.apply_deletion(kind, &uid(number));
        }
        census.advance(&graph, at(10));
        expected.foreground = 1;
        expected.orphan = 0;
        expected.longest = Duration::from_secs(11);
        assert_eq!(census.advance(&graph, at(11)), Some(expected));
        graph.apply_deletion(kind, &uid(2));
        census.advance(&graph, at(12));
        let tally = census.advance(&graph, at(13)).unwrap();
        assert_eq!((tally.foreground, tally.longest), (0, Duration::ZERO));
    }
}
