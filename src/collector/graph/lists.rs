//! Relists: objects that a complete list does not show are deleted.

use super::{Graph, Hint, Lone, NodeId, Observed, State};
use crate::collector::kinds::KindId;

/// Marks of a kind's last list.
#[derive(Debug, Clone, Copy, Default)]
pub struct Round {
    /// The mark of objects seen in the current list. It alternates from list to list, so starting one changes no
    /// object. Between lists all observed objects have it.
    pub mark: bool,
    /// A list has started and is not complete.
    pub is_open: bool,
}

// === impl Graph ===

impl Graph {
    /// Starts a list of this kind. What an aborted list has shown does not count.
    pub fn begin_list(&mut self, kind: KindId) {
        let Round { mark, is_open } = self.round(kind);
        self.doubtful.retain(|(of, _)| *of != kind);
        if is_open {
            for id in self.of_kind(kind) {
                self.links.node_mut(id).state.set(State::ROUND, !mark);
            }
            self.lone[kind.place()].mark_all(!mark);
        } else {
            self.rounds[kind.place()] = Round {
                mark: !mark,
                is_open: true,
            };
        }
    }

    /// Completes a list at this resourceVersion. Objects that it did not show are absent; those with dependents need a
    /// GET.
    pub fn end_list(&mut self, kind: KindId, version: u64) {
        let Round { mark, .. } = self.round(kind);
        self.rounds[kind.place()].is_open = false;
        let mut unseen = self.of_kind(kind);
        unseen.retain(|&id| {
            let state = self.links.node(id).state;
            state.has(State::OBSERVED) && state.has(State::ROUND) != mark
        });
        // Marks all before it removes any: a removal may remove others.
        for &id in &unseen {
            let state = &mut self.links.node_mut(id).state;
            state.set(State::UNSEEN, true);
            state.set(State::ROUND, mark);
        }
        for id in unseen {
            let node = self.links.node(id);
            if node.state.has(State::UNSEEN) && node.dependents == 0 {
                self.absent(id);
            } else if node.state.has(State::UNSEEN) {
                self.hints.push(Hint::Ask(id));
            }
        }
        // Nodes with such a UID at other coordinates stay: a GET younger than the list may have shown them.
        self.lone[kind.place()].sweep(mark);
        self.go_back(kind, version);
    }

    /// Replaces states that the list contradicts. The graph's state is newer than the listed one and not newer than the
    /// list: the store was restored and its revision raised.
    fn go_back(&mut self, kind: KindId, version: u64) {
        let (of_it, others) = self.doubtful.drain(..).partition(|(of, _)| *of == kind);
        self.doubtful = others;
        let of_it: Vec<(KindId, Observed)> = of_it;
        let mark = self.round(kind).mark;
        for (_, object) in of_it {
            let Some(uid) = self.odd.known(&object.uid) else {
                continue;
            };
            let knows_later = |id: &NodeId| {
                let node = self.links.node(*id);
                let is_there = node.kind == kind && node.state.has(State::OBSERVED);
                is_there && object.number() < node.version && node.version <= version
            };
            if let Some(id) = self.links.with_uid(uid).into_iter().find(knows_later) {
                self.links.node_mut(id).version = 0;
                self.take_in(kind, &object, mark);
            }
        }
    }

    /// The mark of a kind. It creates the kind's entries in the tables.
    pub(super) fn round(&mut self, kind: KindId) -> Round {
        let place = kind.place();
        if self.rounds.len() <= place {
            self.rounds.resize(place + 1, Round::default());
            self.lone.resize_with(place + 1, Lone::default);
        }
        self.rounds[place]
    }

    pub(in crate::collector) fn of_kind(&self, kind: KindId) -> Vec<NodeId> {
        self.links.of_kind(kind).collect()
    }
}
