//! Selects the objects of a picture. The cost has a limit and does not depend on an owner's number of dependents.

use indexmap::IndexSet;

use super::object::PicturedReference;
use crate::collector::graph::{Graph, Link, NodeId, NodeState};

/// Maximum number of objects: one or two screens.
const MAX_OBJECTS: usize = 200;
/// Maximum number of references. Objects with one or two owners are drawn with all of them; the limit bounds the
/// layout's time.
const MAX_REFERENCES: usize = 2 * MAX_OBJECTS;
/// Maximum number of links followed from one object in each direction.
const MAX_NEIGHBORS: usize = 20;
/// Maximum number of links that are compared to find the most important ones.
const MAX_COMPARED: usize = 50 * MAX_NEIGHBORS;

/// The selected objects, in the order of the picture.
pub struct Selection<'a> {
    graph: &'a Graph,
    selected: IndexSet<NodeId>,
}

/// Whether something may be to do about it, or it may block its owner.
pub fn is_active(graph: &Graph, id: NodeId) -> bool {
    let state = graph.node(id).state;
    !state.contains(NodeState::OBSERVED) || state.is_unknown() || state.contains(NodeState::DELETING)
}

// === impl Selection ===

impl<'a> Selection<'a> {
    pub fn new(graph: &'a Graph) -> Self {
        Self {
            graph,
            selected: IndexSet::new(),
        }
    }

    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.selected.iter().copied()
    }

    /// Adds these nodes and connected ones, breadth first, until the picture is full.
    pub fn add_around(&mut self, nodes: &[NodeId]) {
        let mut next = self.selected.len();
        self.add(nodes);
        while let Some(&id) = self.selected.get_index(next) {
            next += 1;
            if self.selected.len() >= MAX_OBJECTS {
                return;
            }
            let owners = self.most_important(self.graph.owners(id), |link| (id, link));
            self.add(&owners);
            let dependents =
                self.most_important(self.graph.dependents(id), |link| (link.node, Link { node: id, ..link }));
            self.add(&dependents);
        }
    }

    /// Adds this node and connected ones, unless an owner is in the picture already: then it was left out for space.
    pub fn add_unless_omitted(&mut self, id: NodeId) {
        if !self.graph.owners(id).any(|link| self.selected.contains(&link.node)) {
            self.add_around(&[id]);
        }
    }

    fn add(&mut self, nodes: &[NodeId]) {
        for &id in nodes {
            if self.selected.len() >= MAX_OBJECTS {
                return;
            }
            self.selected.insert(id);
        }
    }

    /// Links that block an owner come first, then links to nodes that are not idle.
    fn most_important(
        &self,
        links: impl Iterator<Item = Link>,
        reference: impl Fn(Link) -> (NodeId, Link),
    ) -> Vec<NodeId> {
        let mut links: Vec<Link> = links.take(MAX_COMPARED).collect();
        links.sort_by_key(|&link| {
            let (dependent, to) = reference(link);
            (!holds_up(self.graph, dependent, to), !is_active(self.graph, link.node))
        });
        links.into_iter().map(|link| link.node).take(MAX_NEIGHBORS).collect()
    }

    /// References between selected nodes.
    pub fn references(&self) -> Vec<PicturedReference> {
        let references_of = |(dependent, &id): (usize, &NodeId)| {
            let links = self.graph.owners(id).take(MAX_COMPARED);
            links.filter_map(move |link| {
                Some(PicturedReference {
                    dependent,
                    owner: self.selected.get_index_of(&link.node)?,
                    blocking: link.blocking,
                    holds_up: holds_up(self.graph, id, link),
                })
            })
        };
        self.selected
            .iter()
            .enumerate()
            .flat_map(references_of)
            .take(MAX_REFERENCES)
            .collect()
    }
}

/// Whether the owner waits for this dependent. A reference to itself does not count.
fn holds_up(graph: &Graph, dependent: NodeId, to: Link) -> bool {
    to.blocking && to.node != dependent && graph.node(to.node).state.in_foreground_deletion()
}
