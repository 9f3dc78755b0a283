//! Namespaces by number.

use std::collections::HashMap;

/// A namespace by number; that of cluster-scoped objects is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(u32);

/// All that were ever named.
#[derive(Debug)]
pub struct Spaces {
    names: Vec<Box<str>>,
    places: HashMap<Box<str>, SpaceId>,
}

// === impl SpaceId ===

impl SpaceId {
    /// Of cluster-scoped objects.
    pub const NONE: Self = Self(0);
}

// === impl Spaces ===

impl Default for Spaces {
    fn default() -> Self {
        Self {
            names: vec![Box::default()],
            places: HashMap::from([(Box::default(), SpaceId::NONE)]),
        }
    }
}

impl Spaces {
    /// The number of a namespace.
    pub fn id(&mut self, name: &str) -> SpaceId {
        if let Some(&id) = self.places.get(name) {
            return id;
        }
        let id = SpaceId(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        self.names.push(name.into());
        self.places.insert(name.into(), id);
        id
    }

    /// Its name.
    pub fn name(&self, SpaceId(id): SpaceId) -> &str {
        self.names.get(id as usize).map_or("", |name| name)
    }
}
