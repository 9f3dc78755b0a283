//! What a list of all objects of a kind proves: that those it does not show are gone.

use super::{Graph, Hint, Lone, NodeId, Observed, State};
use crate::collector::kinds::KindId;

/// Of a kind, which mark those bear that were seen last.
#[derive(Debug, Clone, Copy, Default)]
pub struct Round {
    /// It changes from list to list, so that nothing has to be gone through when one begins. Outside of a list all that is
    /// observed bears it.
    pub mark: bool,
    /// A list has begun and did not end.
    pub is_open: bool,
}

// === impl Graph ===

impl Graph {
    /// A list of all objects of this kind begins. Each has to be observed before it ends. Where the list before it was given
    /// up, what that one showed does not count.
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

    /// The list was complete, and shows the store at this version: what it did not show is gone, or has to be asked for where
    /// somebody depends on it.
    pub fn end_list(&mut self, kind: KindId, version: u64) {
        let Round { mark, .. } = self.round(kind);
        self.rounds[kind.place()].is_open = false;
        let mut unseen = self.of_kind(kind);
        unseen.retain(|&id| {
            let state = self.links.node(id).state;
            state.has(State::OBSERVED) && state.has(State::ROUND) != mark
        });
        // All of them first: one that goes lets others go.
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
        // Nodes that name their UIDs elsewhere learn nothing by it: an answer may have shown them that is younger than the list.
        self.lone[kind.place()].sweep(mark);
        self.go_back(kind, version);
    }

    /// A state that is later than the one which a list shows, but not later than the list itself, is none that the store
    /// knows: it was put back, and its versions raised.
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

    /// The round of lists of a kind; from then on there is a place for it in the tables of kinds.
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
