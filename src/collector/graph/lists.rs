//! Relists: objects that a complete list does not show are deleted.

use super::{Graph, Isolated, ListMark, NodeId, Observed, State, WorkItem};
use crate::collector::kinds::KindId;

// === impl Graph ===

impl Graph {
    /// Starts a list of this kind. Results of an aborted list do not count.
    pub fn begin_list(&mut self, kind: KindId) {
        let ListMark { mark, is_open } = self.list_mark(kind);
        self.older_states.retain(|(of, _)| *of != kind);
        if is_open {
            for id in self.of_kind(kind) {
                self.links.node_mut(id).state.set(State::ROUND, !mark);
            }
            self.isolated[kind.index()].mark_all(!mark);
        } else {
            self.rounds[kind.index()] = ListMark {
                mark: !mark,
                is_open: true,
            };
        }
    }

    /// Completes a list at this resourceVersion. Objects that it did not show are absent; those with dependents need a
    /// GET.
    pub fn end_list(&mut self, kind: KindId, version: u64) {
        let ListMark { mark, .. } = self.list_mark(kind);
        self.rounds[kind.index()].is_open = false;
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
                self.set_absent(id);
            } else if node.state.has(State::UNSEEN) {
                self.items.push(WorkItem::GetOwner(id));
            }
        }
        // Nodes with such a UID at other coordinates stay: a GET younger than the list may have shown them.
        self.isolated[kind.index()].sweep(mark);
        self.apply_restored(kind, version);
    }

    /// Replaces states that the list contradicts. The graph's state is newer than the listed one and not newer than the
    /// list: the store was restored and its revision raised.
    fn apply_restored(&mut self, kind: KindId, version: u64) {
        let (of_it, others) = self.older_states.drain(..).partition(|(of, _)| *of == kind);
        self.older_states = others;
        let of_it: Vec<(KindId, Observed)> = of_it;
        let mark = self.list_mark(kind).mark;
        for (_, object) in of_it {
            let Some(uid) = self.odd_uids.known(&object.uid) else {
                continue;
            };
            let knows_later = |id: &NodeId| {
                let node = self.links.node(*id);
                let is_there = node.kind == kind && node.state.has(State::OBSERVED);
                is_there && object.number() < node.version && node.version <= version
            };
            if let Some(id) = self.links.with_uid(uid).into_iter().find(knows_later) {
                self.links.node_mut(id).version = 0;
                self.apply(kind, &object, mark);
            }
        }
    }

    /// The mark of a kind. It creates the kind's entries in the tables.
    pub(super) fn list_mark(&mut self, kind: KindId) -> ListMark {
        let place = kind.index();
        if self.rounds.len() <= place {
            self.rounds.resize(place + 1, ListMark::default());
            self.isolated.resize_with(place + 1, Isolated::default);
        }
        self.rounds[place]
    }

    pub(in crate::collector) fn of_kind(&self, kind: KindId) -> Vec<NodeId> {
        self.links.of_kind(kind).collect()
    }
}
