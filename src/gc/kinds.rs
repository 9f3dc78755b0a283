//! Kinds by number: what an owner reference names is a kind of a group, in whatever version it is written.

use std::collections::HashMap;

/// A kind of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KindId(u16);

/// Whether objects of a kind live in namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// They do.
    Namespaced,
    /// They do not.
    Cluster,
}

/// Where a kind is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// The version that is watched.
    pub version: String,
    /// Plural name, as in the path.
    pub plural: String,
    /// Where its objects live.
    pub scope: Scope,
}

/// All kinds that were ever named.
#[derive(Debug, Default)]
pub struct Kinds {
    rows: Vec<Row>,
    ids: HashMap<String, HashMap<String, KindId>>,
}

#[derive(Debug)]
struct Row {
    group: String,
    kind: String,
    resource: Option<Resource>,
    short_names: Vec<String>,
}

/// So many kinds may only be named: whoever makes them up leaves numbers for those that are served.
const NAMED: usize = 60_000;

// === impl KindId ===

impl KindId {
    /// One too many to have a number. It is nowhere served, and so nothing is concluded of it.
    pub const UNKNOWN: Self = Self(u16::MAX);

    /// Its place in tables of kinds.
    pub fn place(self) -> usize {
        self.0.into()
    }
}

// === impl Kinds ===

impl Kinds {
    /// The number of a kind. `None` when there are 65,535 already: somebody makes up kinds.
    pub fn id(&mut self, group: &str, kind: &str) -> Option<KindId> {
        if let Some(&id) = self.ids.get(group).and_then(|kinds| kinds.get(kind)) {
            return Some(id);
        }
        let id = KindId(u16::try_from(self.rows.len()).ok().filter(|&place| place != u16::MAX)?);
        self.rows.push(Row {
            group: group.to_owned(),
            kind: kind.to_owned(),
            resource: None,
            short_names: Vec::new(),
        });
        let kinds = self.ids.entry(group.to_owned()).or_default();
        kinds.insert(kind.to_owned(), id);
        Some(id)
    }

    /// The number of a kind that was named before.
    pub fn known(&self, group: &str, kind: &str) -> Option<KindId> {
        self.ids.get(group)?.get(kind).copied()
    }

    /// The number of a kind as an owner reference names it.
    pub fn referenced(&mut self, api_version: &str, kind: &str) -> KindId {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let known = self.known(group, kind);
        if known.is_none() && self.rows.len() >= NAMED {
            return KindId::UNKNOWN;
        }
        self.id(group, kind).unwrap_or(KindId::UNKNOWN)
    }

    /// Where it is served; `None` if it is not known to be.
    pub fn resource(&self, id: KindId) -> Option<&Resource> {
        self.row(id)?.resource.as_ref()
    }

    /// Learns where a kind is served, or that it is not.
    pub fn set_resource(&mut self, id: KindId, resource: Option<Resource>) {
        if let Some(row) = self.rows.get_mut(id.place()) {
            row.resource = resource;
        }
    }

    /// Learns what people call it for short.
    pub fn set_short_names(&mut self, id: KindId, names: &[String]) {
        if let Some(row) = self.rows.get_mut(id.place())
            && row.short_names != names
        {
            row.short_names = names.to_vec();
        }
    }

    /// Whether people mean it by this word: its name, its plural or a short name, in any case.
    pub fn is_called(&self, id: KindId, word: &str) -> bool {
        let is = |name: &str| name.eq_ignore_ascii_case(word);
        self.row(id).is_some_and(|row| {
            is(&row.kind)
                || row.resource.as_ref().is_some_and(|resource| is(&resource.plural))
                || row.short_names.iter().any(|name| is(name))
        })
    }

    /// All that were ever named.
    pub fn all(&self) -> impl Iterator<Item = KindId> {
        (0..self.rows.len()).filter_map(|place| u16::try_from(place).ok().map(KindId))
    }

    /// All that are served, and where.
    pub fn served(&self) -> impl Iterator<Item = (KindId, &Resource)> {
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(place, row)| Some((KindId(u16::try_from(place).ok()?), row.resource.as_ref()?)))
    }

    /// Its group, empty for the core one.
    pub fn group(&self, id: KindId) -> &str {
        self.row(id).map_or("", |row| &row.group)
    }

    /// Its name.
    pub fn kind(&self, id: KindId) -> &str {
        self.row(id).map_or("", |row| &row.kind)
    }

    fn row(&self, id: KindId) -> Option<&Row> {
        self.rows.get(id.place())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_the_same_in_all_its_versions_and_not_in_another_group() {
        let mut kinds = Kinds::default();
        let one = kinds.referenced("example.com/v1", "Thing");
        assert_eq!(kinds.referenced("example.com/v1beta1", "Thing"), one);
        assert_ne!(kinds.referenced("example.org/v1", "Thing"), one);
        assert_ne!(kinds.referenced("v1", "Thing"), one);
        assert_eq!(Some(kinds.referenced("v1", "Thing")), kinds.id("", "Thing"));
    }

    #[test]
    fn whoever_makes_up_kinds_does_not_exhaust_the_numbers_of_others() {
        let mut kinds = Kinds::default();
        let pod = kinds.id("", "Pod");
        for number in 0..70_000 {
            kinds.id("made-up", &number.to_string());
        }
        assert_eq!(kinds.id("", "Pod"), pod);
        assert_eq!(kinds.id("", "Late"), None);
    }
}
