//! Which objects a picture shows. The time depends on the limits below, not on how many dependents an owner has.

use indexmap::IndexSet;

use super::Drawn;
use crate::collector::graph::{Graph, Link, NodeId, State};

/// Objects in a picture: what a screen or two can show.
const OBJECTS: usize = 200;
/// References in a picture. Objects with one or two owners are all drawn with them, and who makes a thicket does not keep
/// those who draw it busy.
const REFERENCES: usize = 2 * OBJECTS;
/// Followed from one object in either direction: one owner must not fill the picture.
const NEIGHBOURS: usize = 20;
/// Looked at to find those that matter most.
const LOOKED_AT: usize = 50 * NEIGHBOURS;

/// Objects chosen so far, each at its place in the picture.
pub struct Selection<'a> {
    graph: &'a Graph,
    chosen: IndexSet<NodeId>,
}

/// Whether there is something about it that may be to do, or may hold others up.
pub fn is_restless(graph: &Graph, id: NodeId) -> bool {
    let state = graph.node(id).state;
    !state.has(State::OBSERVED) || state.is_in_question() || state.has(State::DELETING)
}

// === impl Selection ===

impl<'a> Selection<'a> {
    pub fn new(graph: &'a Graph) -> Self {
        Self {
            graph,
            chosen: IndexSet::new(),
        }
    }

    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.chosen.iter().copied()
    }

    /// Adds these and what is connected with them, breadth first, until the picture is full.
    pub fn add_around(&mut self, nodes: &[NodeId]) {
        let mut next = self.chosen.len();
        self.add(nodes);
        while let Some(&id) = self.chosen.get_index(next) {
            next += 1;
            if self.chosen.len() >= OBJECTS {
                return;
            }
            let owners = self.foremost(self.graph.owners(id), |link| (id, link));
            self.add(&owners);
            let dependents = self.foremost(self.graph.dependents(id), |link| (link.node, Link { node: id, ..link }));
            self.add(&dependents);
        }
    }

    /// Adds this one and what is connected with it, unless it was left out before to make room for others.
    pub fn add_apart(&mut self, id: NodeId) {
        if !self.graph.owners(id).any(|link| self.chosen.contains(&link.node)) {
            self.add_around(&[id]);
        }
    }

    fn add(&mut self, nodes: &[NodeId]) {
        for &id in nodes {
            if self.chosen.len() >= OBJECTS {
                return;
            }
            self.chosen.insert(id);
        }
    }

    /// Those that hold something up first, then those that are not idle.
    fn foremost(&self, links: impl Iterator<Item = Link>, reference: impl Fn(Link) -> (NodeId, Link)) -> Vec<NodeId> {
        let mut links: Vec<Link> = links.take(LOOKED_AT).collect();
        links.sort_by_key(|&link| {
            let (dependent, to) = reference(link);
            (
                !holds_up(self.graph, dependent, to),
                !is_restless(self.graph, link.node),
            )
        });
        links.into_iter().map(|link| link.node).take(NEIGHBOURS).collect()
    }

    /// References between those that were chosen.
    pub fn references(&self) -> Vec<Drawn> {
        let of_one = |(dependent, &id): (usize, &NodeId)| {
            let links = self.graph.owners(id).take(LOOKED_AT);
            links.filter_map(move |link| {
                Some(Drawn {
                    dependent,
                    owner: self.chosen.get_index_of(&link.node)?,
                    blocking: link.blocking,
                    holds_up: holds_up(self.graph, id, link),
                })
            })
        };
        self.chosen
            .iter()
            .enumerate()
            .flat_map(of_one)
            .take(REFERENCES)
            .collect()
    }
}

/// Whether the owner waits for this dependent. Nobody waits for itself.
fn holds_up(graph: &Graph, dependent: NodeId, to: Link) -> bool {
    to.blocking && to.node != dependent && graph.node(to.node).state.waits()
}
