//! Namespaces by number.

use std::{collections::HashMap, sync::Arc};

/// A namespace by number; that of cluster-scoped objects is the first. No number is given twice: a request that is under way
/// may name one that is gone. Four billion namespaces with owners do not come in the life of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(u32);

/// Those in which nodes are.
#[derive(Debug, Default)]
pub struct Spaces {
    spaces: HashMap<SpaceId, Space>,
    ids: HashMap<Arc<str>, SpaceId>,
    last: u32,
}

#[derive(Debug)]
struct Space {
    name: Arc<str>,
    /// How many nodes are in it.
    nodes: u32,
}

// === impl SpaceId ===

impl SpaceId {
    /// Of cluster-scoped objects.
    pub const NONE: Self = Self(0);
}

// === impl Spaces ===

impl Spaces {
    /// The number of a namespace in which nodes are.
    pub fn known(&self, name: &str) -> Option<SpaceId> {
        if name.is_empty() {
            return Some(SpaceId::NONE);
        }
        self.ids.get(name).copied()
    }

    /// The number of a namespace in which a node is to be.
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

    /// Its name; empty if no node is in it any more.
    pub fn name(&self, id: SpaceId) -> &str {
        self.spaces.get(&id).map_or("", |space| &space.name)
    }

    /// A node is in it.
    pub fn enter(&mut self, id: SpaceId) {
        if let Some(space) = self.spaces.get_mut(&id) {
            space.nodes += 1;
        }
    }

    /// A node is in it no more. With the last one its name goes.
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

    /// How many there are.
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
