//! Relists: objects that a complete list does not show are deleted.

use super::{Graph, Isolated, ListMark, NodeId, NodeState, Observed, WorkItem};
use crate::collector::kinds::KindId;

// === impl Graph ===

impl Graph {
    /// Starts a list of this kind. Results of an aborted list do not count.
    pub fn begin_list(&mut self, kind: KindId) {
        let ListMark { mark, is_open } = self.list_mark(kind);
        self.older_states.retain(|(listed_kind, _)| *listed_kind != kind);
        if is_open {
            for id in self.nodes_of_kind(kind) {
                self.links.node_mut(id).state.set(NodeState::LIST_MARK, !mark);
            }
            self.isolated[kind.index()].mark_all(!mark);
        } else {
            self.list_marks[kind.index()] = ListMark {
                mark: !mark,
                is_open: true,
            };
        }
    }

    /// Completes a list at this resourceVersion. Objects that it did not show are absent; those with dependents need a
    /// GET.
    pub fn end_list(&mut self, kind: KindId, version: u64) {
        let ListMark { mark, .. } = self.list_mark(kind);
        self.list_marks[kind.index()].is_open = false;
        let mut unseen = self.nodes_of_kind(kind);
        unseen.retain(|&id| {
            let state = self.links.node(id).state;
            state.contains(NodeState::OBSERVED) && state.contains(NodeState::LIST_MARK) != mark
        });
        // Marks all before it removes any: a removal may remove others.
        for &id in &unseen {
            let state = &mut self.links.node_mut(id).state;
            state.set(NodeState::UNCONFIRMED, true);
            state.set(NodeState::LIST_MARK, mark);
        }
        for id in unseen {
            let node = self.links.node(id);
            if node.state.contains(NodeState::UNCONFIRMED) && node.dependents == 0 {
                self.set_absent(id);
            } else if node.state.contains(NodeState::UNCONFIRMED) {
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
        let (older_states, others) = self
            .older_states
            .drain(..)
            .partition(|(listed_kind, _)| *listed_kind == kind);
        self.older_states = others;
        let older_states: Vec<(KindId, Observed)> = older_states;
        let mark = self.list_mark(kind).mark;
        for (_, object) in older_states {
            let Some(uid) = self.interned_uids.known(&object.uid) else {
                continue;
            };
            let has_later_state = |id: &NodeId| {
                let node = self.links.node(*id);
                let is_observed = node.kind == kind && node.state.contains(NodeState::OBSERVED);
                is_observed && object.version_number() < node.version && node.version <= version
            };
            if let Some(id) = self.links.with_uid(uid).into_iter().find(has_later_state) {
                self.links.node_mut(id).version = 0;
                self.apply(kind, &object, mark);
            }
        }
    }

    /// The mark of a kind. It creates the kind's entries in the tables.
    pub(super) fn list_mark(&mut self, kind: KindId) -> ListMark {
        let index = kind.index();
        if self.list_marks.len() <= index {
            self.list_marks.resize(index + 1, ListMark::default());
            self.isolated.resize_with(index + 1, Isolated::default);
        }
        self.list_marks[index]
    }

    /// All nodes of a kind, in a stable order.
    pub(in crate::collector) fn nodes_of_kind(&self, kind: KindId) -> Vec<NodeId> {
        self.links.nodes_of_kind(kind).collect()
    }
}
