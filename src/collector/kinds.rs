//! Kinds by number. A kind is identified by group and kind, without the version, as owner references name it.

use indexmap::{Equivalent, IndexMap};

/// A kind of an API group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KindId(u16);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    Cluster,
}

/// Where a kind is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// The version that is watched.
    pub version: String,
    /// Plural name, as in the path.
    pub plural: String,
    pub scope: Scope,
    /// As `kubectl` takes them.
    pub short_names: Vec<String>,
}

/// All kinds that were ever named, by group and kind, and where each is served. The index is the number.
#[derive(Debug, Default)]
pub struct Kinds {
    table: IndexMap<Name, Option<Resource>>,
    /// There may be tens of thousands of others.
    served: Vec<KindId>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Name {
    group: Box<str>,
    kind: Box<str>,
}

/// [`Name`] for lookups.
#[derive(Hash)]
struct NameRef<'a> {
    group: &'a str,
    kind: &'a str,
}

/// Maximum number of kinds before references to new ones are not counted any more. Served kinds may use the rest.
const MAX_REFERENCED: usize = 60_000;
/// Maximum length of a group and of a kind that the API server accepts in a CustomResourceDefinition. Kinds are never
/// removed.
const MAX_LENGTHS: (usize, usize) = (253, 63);

// === impl KindId ===

impl KindId {
    /// A kind without a number: there are too many, or its name is invalid. It is not served, so nothing is concluded
    /// from it.
    pub const UNKNOWN: Self = Self(u16::MAX);

    /// Its index in tables of kinds.
    pub fn index(self) -> usize {
        self.0.into()
    }
}

// === impl Kinds ===

impl Kinds {
    /// The number of a kind; `None` if all 65,535 are used.
    pub fn id(&mut self, group: &str, kind: &str) -> Option<KindId> {
        if let Some(known) = self.known(group, kind) {
            return Some(known);
        }
        let id = KindId(
            u16::try_from(self.table.len())
                .ok()
                .filter(|&index| index != u16::MAX)?,
        );
        let (group, kind) = (group.into(), kind.into());
        self.table.insert(Name { group, kind }, None);
        Some(id)
    }

    pub fn known(&self, group: &str, kind: &str) -> Option<KindId> {
        let index = self.table.get_index_of(&NameRef { group, kind })?;
        u16::try_from(index).ok().map(KindId)
    }

    pub fn referenced(&mut self, api_version: &str, kind: &str) -> KindId {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let is_too_long = group.len() > MAX_LENGTHS.0 || kind.len() > MAX_LENGTHS.1;
        let id = match self.known(group, kind) {
            None if self.table.len() < MAX_REFERENCED && !is_too_long => self.id(group, kind),
            known => known,
        };
        id.map_or(KindId::UNKNOWN, |id| self.resolve_alias(id))
    }

    /// The kind that references to `id` mean. A kind that is not served may be a served one's name in lower case:
    /// kube-controller-manager's RESTMapper resolves these, too.
    pub fn resolve_alias(&self, id: KindId) -> KindId {
        let (group, kind) = (self.group(id), self.kind(id));
        if self.resource(id).is_some() || kind.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return id;
        }
        let is_same = |it: &KindId| self.group(*it) == group && self.kind(*it).eq_ignore_ascii_case(kind);
        let mut served = self.served().map(|(id, _)| id).filter(is_same);
        match (served.next(), served.next()) {
            (Some(only), None) => only,
            _ => id,
        }
    }

    /// The known kind whose name is this kind's name in lower case, if references to it mean this kind.
    pub fn lower_case_alias(&self, id: KindId) -> Option<KindId> {
        let lower = self.known(self.group(id), &self.kind(id).to_ascii_lowercase())?;
        (lower != id && self.resolve_alias(lower) == id).then_some(lower)
    }

    /// Where it is served; `None` if it is not known to be.
    pub fn resource(&self, id: KindId) -> Option<&Resource> {
        self.table.get_index(id.index())?.1.as_ref()
    }

    /// Sets or removes where a kind is served.
    pub fn set_resource(&mut self, id: KindId, resource: Option<Resource>) {
        if let Some((_, known)) = self.table.get_index_mut(id.index()) {
            self.served.retain(|it| *it != id);
            self.served.extend(resource.is_some().then_some(id));
            *known = resource;
        }
    }

    /// Whether `word` is its name, its plural or a short name. Case is ignored.
    pub fn matches_name(&self, id: KindId, word: &str) -> bool {
        let is = |name: &str| name.eq_ignore_ascii_case(word);
        let is_resource = |it: &Resource| is(&it.plural) || it.short_names.iter().any(|name| is(name));
        is(self.kind(id)) || self.resource(id).is_some_and(is_resource)
    }

    /// All kinds that were ever named.
    pub fn all(&self) -> impl Iterator<Item = KindId> {
        (0..self.table.len()).filter_map(|index| u16::try_from(index).ok().map(KindId))
    }

    pub fn served(&self) -> impl Iterator<Item = (KindId, &Resource)> {
        self.served.iter().filter_map(|&id| Some((id, self.resource(id)?)))
    }

    /// Its group, empty for the core group.
    pub fn group(&self, id: KindId) -> &str {
        self.table.get_index(id.index()).map_or("", |(name, _)| &name.group)
    }

    pub fn kind(&self, id: KindId) -> &str {
        self.table.get_index(id.index()).map_or("", |(name, _)| &name.kind)
    }
}

// === impl NameRef ===

impl Equivalent<Name> for NameRef<'_> {
    fn equivalent(&self, name: &Name) -> bool {
        *self.group == *name.group && *self.kind == *name.kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_a_group_share_a_kind_and_groups_do_not() {
        let mut kinds = Kinds::default();
        let one = kinds.referenced("example.com/v1", "Thing");
        assert_eq!(kinds.referenced("example.com/v1beta1", "Thing"), one);
        assert_ne!(kinds.referenced("example.org/v1", "Thing"), one);
        assert_ne!(kinds.referenced("v1", "Thing"), one);
        assert_eq!(Some(kinds.referenced("v1", "Thing")), kinds.id("", "Thing"));
    }

    #[test]
    fn a_name_in_lower_case_resolves_to_the_only_served_kind() {
        let mut kinds = Kinds::default();
        let served = || {
            Some(Resource {
                version: "v1".into(),
                plural: "things".into(),
                scope: Scope::Cluster,
                short_names: Vec::new(),
            })
        };
        let lower = kinds.referenced("v1", "thing");
        let thing = kinds.id("", "Thing").unwrap();
        assert_ne!(lower, thing);
        kinds.set_resource(thing, served());
        assert_eq!(
            (kinds.referenced("v1", "thing"), kinds.lower_case_alias(thing)),
            (thing, Some(lower))
        );
        for (version, kind) in [("a.test/v1", "thing"), ("v1", "tHing"), ("v1", "THING")] {
            assert_ne!(kinds.referenced(version, kind), thing, "{version} {kind}");
        }
        let upper = kinds.id("", "THING").unwrap();
        kinds.set_resource(upper, served());
        assert_eq!(
            (kinds.referenced("v1", "thing"), kinds.lower_case_alias(thing)),
            (lower, None)
        );
        kinds.set_resource(upper, None);
        assert_eq!(kinds.referenced("v1", "thing"), thing);
        kinds.set_resource(lower, served());
        assert_eq!(
            (kinds.referenced("v1", "thing"), kinds.lower_case_alias(thing)),
            (lower, None)
        );
        kinds.set_resource(lower, None);
        kinds.set_resource(thing, None);
        assert_eq!(
            (kinds.referenced("v1", "thing"), kinds.lower_case_alias(thing)),
            (lower, None)
        );
    }

    #[test]
    fn too_long_kinds_and_groups_get_no_number() {
        let mut kinds = Kinds::default();
        let (kind, group) = ("K".repeat(63), "g".repeat(253));
        assert_ne!(kinds.referenced(&format!("{group}/v1"), &kind), KindId::UNKNOWN);
        let before = kinds.table.len();
        assert_eq!(kinds.referenced("v1", &format!("{kind}K")), KindId::UNKNOWN);
        assert_eq!(kinds.referenced(&format!("{group}g/v1"), "Thing"), KindId::UNKNOWN);
        assert_eq!(kinds.table.len(), before);
    }

    #[test]
    fn made_up_kinds_do_not_use_the_numbers_of_served_kinds() {
        let mut kinds = Kinds::default();
        let pod = kinds.id("", "Pod");
        for number in 0..70_000 {
            kinds.id("made-up", &number.to_string());
        }
        assert_eq!(kinds.id("", "Pod"), pod);
        assert_eq!(kinds.id("", "Late"), None);
    }
}
