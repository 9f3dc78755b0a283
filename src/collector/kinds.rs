//! Kinds by number. A kind is identified by group and kind, without the version, as owner references name it.

use std::{collections::HashMap, sync::Arc};

/// A kind of an API group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KindId(u16);

/// Whether objects of a kind are namespaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// They have a namespace.
    Namespaced,
    /// They have none.
    Cluster,
}

/// Where a kind is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// The version that is watched.
    pub version: String,
    /// Plural name, as in the path.
    pub plural: String,
    /// Scope of its objects.
    pub scope: Scope,
}

/// All kinds that were ever named.
#[derive(Debug, Default)]
pub struct Kinds {
    rows: Vec<Row>,
    ids: HashMap<Arc<str>, HashMap<Arc<str>, KindId>>,
    /// Served kinds by their names in lower case; `None` where several kinds share one.
    in_lower_case: HashMap<Arc<str>, HashMap<String, Option<KindId>>>,
}

#[derive(Debug)]
struct Row {
    group: Arc<str>,
    kind: Arc<str>,
    resource: Option<Resource>,
    short_names: Vec<String>,
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
        if let Some(&id) = self.ids.get(group).and_then(|kinds| kinds.get(kind)) {
            return Some(id);
        }
        let id = KindId(u16::try_from(self.rows.len()).ok().filter(|&index| index != u16::MAX)?);
        let group = match self.ids.get_key_value(group) {
            Some((group, _)) => Arc::clone(group),
            None => group.into(),
        };
        let kind: Arc<str> = kind.into();
        let kinds = self.ids.entry(Arc::clone(&group)).or_default();
        kinds.insert(Arc::clone(&kind), id);
        self.rows.push(Row {
            group,
            kind,
            resource: None,
            short_names: Vec::new(),
        });
        Some(id)
    }

    /// The number of a known kind.
    pub fn known(&self, group: &str, kind: &str) -> Option<KindId> {
        self.ids.get(group)?.get(kind).copied()
    }

    /// The number of a kind in an owner reference.
    pub fn referenced(&mut self, api_version: &str, kind: &str) -> KindId {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        match self.known(group, kind) {
            Some(known) => self.resolve_alias(known),
            None if self.rows.len() >= MAX_REFERENCED || group.len() > MAX_LENGTHS.0 || kind.len() > MAX_LENGTHS.1 => {
                KindId::UNKNOWN
            }
            None => self
                .id(group, kind)
                .map_or(KindId::UNKNOWN, |id| self.resolve_alias(id)),
        }
    }

    /// The kind that references to `id` mean. A kind that is not served may be a served one's name in lower case:
    /// kube-controller-manager's RESTMapper resolves these, too.
    pub fn resolve_alias(&self, id: KindId) -> KindId {
        let is_served = self.resource(id).is_some();
        let other = || *self.in_lower_case.get(self.group(id))?.get(self.kind(id))?;
        if is_served { id } else { other().unwrap_or(id) }
    }

    /// The known kind whose name is this kind's name in lower case, if references to it mean this kind.
    pub fn lower_case_alias(&self, id: KindId) -> Option<KindId> {
        let lower = self.known(self.group(id), &self.kind(id).to_ascii_lowercase())?;
        (lower != id && self.resolve_alias(lower) == id).then_some(lower)
    }

    /// Where it is served; `None` if it is not known to be.
    pub fn resource(&self, id: KindId) -> Option<&Resource> {
        self.row(id)?.resource.as_ref()
    }

    /// Sets or removes where a kind is served.
    pub fn set_resource(&mut self, id: KindId, resource: Option<Resource>) {
        let Some(row) = self.rows.get_mut(id.index()) else {
            return;
        };
        let was_served = std::mem::replace(&mut row.resource, resource).is_some();
        if was_served != self.resource(id).is_some() {
            self.index_lower_case();
        }
    }

    fn index_lower_case(&mut self) {
        self.in_lower_case.clear();
        for (index, row) in self.rows.iter().enumerate().filter(|(_, row)| row.resource.is_some()) {
            let group = self.in_lower_case.entry(Arc::clone(&row.group)).or_default();
            let id = u16::try_from(index).ok().map(KindId);
            let name = row.kind.to_ascii_lowercase();
            group.entry(name).and_modify(|other| *other = None).or_insert(id);
        }
    }

    /// Sets the kind's short names.
    pub fn set_short_names(&mut self, id: KindId, names: &[String]) {
        if let Some(row) = self.rows.get_mut(id.index())
            && row.short_names != names
        {
            row.short_names = names.to_vec();
        }
    }

    /// Whether `word` is its name, its plural or a short name. Case is ignored.
    pub fn matches_name(&self, id: KindId, word: &str) -> bool {
        let is = |name: &str| name.eq_ignore_ascii_case(word);
        self.row(id).is_some_and(|row| {
            is(&row.kind)
                || row.resource.as_ref().is_some_and(|resource| is(&resource.plural))
                || row.short_names.iter().any(|name| is(name))
        })
    }

    /// All kinds that were ever named.
    pub fn all(&self) -> impl Iterator<Item = KindId> {
        (0..self.rows.len()).filter_map(|index| u16::try_from(index).ok().map(KindId))
    }

    /// All served kinds.
    pub fn served(&self) -> impl Iterator<Item = (KindId, &Resource)> {
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(index, row)| Some((KindId(u16::try_from(index).ok()?), row.resource.as_ref()?)))
    }

    /// Its group, empty for the core group.
    pub fn group(&self, id: KindId) -> &str {
        self.row(id).map_or("", |row| &row.group)
    }

    /// Its name.
    pub fn kind(&self, id: KindId) -> &str {
        self.row(id).map_or("", |row| &row.kind)
    }

    fn row(&self, id: KindId) -> Option<&Row> {
        self.rows.get(id.index())
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
        let before = kinds.rows.len();
        assert_eq!(kinds.referenced("v1", &format!("{kind}K")), KindId::UNKNOWN);
        assert_eq!(kinds.referenced(&format!("{group}g/v1"), "Thing"), KindId::UNKNOWN);
        assert_eq!(kinds.rows.len(), before);
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
