//! Namespaces by number.

use std::{collections::HashMap, sync::Arc};

/// A namespace, or none for cluster-scoped objects. Numbers are not reused, since a request in flight may name a
/// removed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(u32);

/// Namespaces with nodes.
#[derive(Debug, Default)]
pub struct Spaces {
    spaces: HashMap<SpaceId, Space>,
    ids: HashMap<Arc<str>, SpaceId>,
    last: u32,
}

#[derive(Debug)]
struct Space {
    name: Arc<str>,
    /// Number of nodes.
    nodes: u32,
}

// === impl SpaceId ===

impl SpaceId {
    /// Cluster-scoped objects have this one.
    pub const NONE: Self = Self(0);
}

// === impl Spaces ===

impl Spaces {
    /// The ID of a namespace with nodes.
    pub fn known(&self, name: &str) -> Option<SpaceId> {
        if name.is_empty() {
            return Some(SpaceId::NONE);
        }
        self.ids.get(name).copied()
    }

    /// The ID of a namespace, new or known.
    pub fn id(&mut self, name: &str) -> SpaceId {
        if let Some(id) = self.known(name) {
            return id;
        }
        self.last += 1;
        let (id, name): (_, Arc<str>) = (SpaceId(self.last), name.into());
        self.ids.insert(Arc::clone(&name), id);
        self.spaces.insert(id, Space { name, nodes: 0 });
        id
    }

    /// Its name; empty if it has no nodes.
    pub fn name(&self, id: SpaceId) -> &str {
        self.spaces.get(&id).map_or("", |space| &space.name)
    }

    /// Counts a node.
    pub fn enter(&mut self, id: SpaceId) {
        if let Some(space) = self.spaces.get_mut(&id) {
            space.nodes += 1;
        }
    }

    /// Uncounts a node. With the last one, the name is removed.
    pub fn leave(&mut self, id: SpaceId) {
        let Some(space) = self.spaces.get_mut(&id) else {
            return;
        };
        space.nodes -= 1;
        if space.nodes == 0
            && let Some(space) = self.spaces.remove(&id)
        {
            self.ids.remove(&space.name);
        }
    }

    /// Number of namespaces with nodes.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.spaces.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_goes_with_the_last_node_and_its_number_is_not_given_again() {
        let mut spaces = Spaces::default();
        let one = spaces.id("one");
        spaces.enter(one);
        spaces.enter(spaces.known("one").unwrap());
        spaces.leave(one);
        assert_eq!((spaces.name(one), spaces.known("one")), ("one", Some(one)));
        spaces.leave(one);
        assert_eq!((spaces.name(one), spaces.known("one"), spaces.len()), ("", None, 0));
        assert_ne!(spaces.id("two"), one);
        assert_ne!(spaces.id("one"), one);
        assert_eq!((spaces.id(""), spaces.known("")), (SpaceId::NONE, Some(SpaceId::NONE)));
    }
}
