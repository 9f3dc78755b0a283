//! Namespaces by number.

use std::{collections::HashMap, sync::Arc};

/// A namespace, or none for cluster-scoped objects. Numbers are not reused, since a request in flight may name a
/// removed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceId(u32);

/// Namespaces with nodes.
#[derive(Debug, Default)]
pub struct Namespaces {
    namespaces: HashMap<NamespaceId, NamespaceEntry>,
    ids: HashMap<Arc<str>, NamespaceId>,
    last: u32,
}

#[derive(Debug)]
struct NamespaceEntry {
    name: Arc<str>,
    /// Number of nodes.
    nodes: u32,
}

// === impl NamespaceId ===

impl NamespaceId {
    /// Cluster-scoped objects have this one.
    pub const NONE: Self = Self(0);
}

// === impl Namespaces ===

impl Namespaces {
    /// The ID of a namespace with nodes.
    pub fn known(&self, name: &str) -> Option<NamespaceId> {
        if name.is_empty() {
            return Some(NamespaceId::NONE);
        }
        self.ids.get(name).copied()
    }

    /// The ID of a namespace, new or known.
    pub fn id(&mut self, name: &str) -> NamespaceId {
        if let Some(id) = self.known(name) {
            return id;
        }
        self.last += 1;
        let (id, name): (_, Arc<str>) = (NamespaceId(self.last), name.into());
        self.ids.insert(Arc::clone(&name), id);
        self.namespaces.insert(id, NamespaceEntry { name, nodes: 0 });
        id
    }

    /// Its name; empty if it has no nodes.
    pub fn name(&self, id: NamespaceId) -> &str {
        self.namespaces.get(&id).map_or("", |entry| &entry.name)
    }

    /// Counts a node.
    pub fn enter(&mut self, id: NamespaceId) {
        if let Some(entry) = self.namespaces.get_mut(&id) {
            entry.nodes += 1;
        }
    }

    /// Uncounts a node. With the last one, the name is removed.
    pub fn leave(&mut self, id: NamespaceId) {
        let Some(entry) = self.namespaces.get_mut(&id) else {
            return;
        };
        entry.nodes -= 1;
        if entry.nodes == 0
            && let Some(entry) = self.namespaces.remove(&id)
        {
            self.ids.remove(&entry.name);
        }
    }

    /// Number of namespaces with nodes.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.namespaces.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_removed_with_its_last_node_and_its_id_is_not_reused() {
        let mut namespaces = Namespaces::default();
        let one = namespaces.id("one");
        namespaces.enter(one);
        namespaces.enter(namespaces.known("one").unwrap());
        namespaces.leave(one);
        assert_eq!((namespaces.name(one), namespaces.known("one")), ("one", Some(one)));
        namespaces.leave(one);
        assert_eq!(
            (namespaces.name(one), namespaces.known("one"), namespaces.len()),
            ("", None, 0)
        );
        assert_ne!(namespaces.id("two"), one);
        assert_ne!(namespaces.id("one"), one);
        assert_eq!(
            (namespaces.id(""), namespaces.known("")),
            (NamespaceId::NONE, Some(NamespaceId::NONE))
        );
    }
}
