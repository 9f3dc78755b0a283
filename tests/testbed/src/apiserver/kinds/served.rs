//! The served kinds: built-in ones, those of definitions, and those of unavailable servers.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::Kind;
use super::built_in::KINDS;

/// The kinds that are served.
#[derive(Debug, Default)]
pub struct Served {
    /// In the order of their groups and versions.
    custom: Vec<&'static Kind>,
    /// Group versions that are answered by another server, which cannot be reached.
    unavailable: BTreeSet<(String, String)>,
    /// Group versions that are served but left out of discovery.
    undiscoverable: BTreeSet<(String, String)>,
}

impl Served {
    /// Every kind that is served, in the order in which discovery names them.
    pub fn all(&self) -> impl Iterator<Item = &'static Kind> + '_ {
        KINDS.iter().chain(self.custom.iter().copied())
    }

    /// The kind behind a path, if it is served.
    pub fn find(&self, group: &str, version: &str, resource: &str) -> Option<&'static Kind> {
        self.all()
            .find(|kind| kind.resource == resource && kind.group == group && kind.version == version)
    }

    /// The kind named in the object, if it is served.
    pub fn of_object(&self, api_version: &str, kind: &str) -> Option<&'static Kind> {
        self.all()
            .find(|row| row.kind == kind && row.api_version() == api_version)
    }

    /// Whether some kind is served under this group and version.
    pub fn has(&self, group: &str, version: &str) -> bool {
        self.all().any(|kind| kind.group == group && kind.version == version)
    }

    /// The groups but the core one, each with its versions, the preferred one first.
    pub fn groups(&self) -> Vec<(&str, Vec<&str>)> {
        let known = self.all().map(|kind| (kind.group, kind.version));
        let unavailable = self
            .unavailable
            .iter()
            .map(|(group, version)| (group.as_str(), version.as_str()));
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        for (group, version) in known.chain(unavailable).filter(|(group, _)| !group.is_empty()) {
            match groups.iter_mut().find(|(name, _)| *name == group) {
                Some((_, versions)) if versions.contains(&version) => {}
                Some((_, versions)) => versions.push(version),
                None => groups.push((group, vec![version])),
            }
        }
        for (_, versions) in &mut groups {
            versions.sort_by_key(|version| Reverse(maturity(version)));
        }
        groups
    }

    /// Serves `kinds` as group and resource, instead of earlier ones. Returns whether anything changed.
    pub fn define(&mut self, group: &str, resource: &str, kinds: &[&'static Kind]) -> bool {
        let is_it = |kind: &Kind| kind.group == group && kind.resource == resource;
        let before: Vec<_> = self.custom.iter().copied().filter(|kind| is_it(kind)).collect();
        let same = before.len() == kinds.len()
            && before
                .iter()
                .all(|old| kinds.iter().any(|new| std::ptr::eq(*old, *new)));
        if same {
            return false;
        }
        self.custom.retain(|kind| !is_it(kind));
        self.custom.extend(kinds);
        self.custom
            .sort_by_key(|kind| (kind.group, Reverse(maturity(kind.version)), kind.resource));
        true
    }

    /// Whether this group version is answered by a server that cannot be reached.
    pub fn is_away(&self, group: &str, version: &str) -> bool {
        self.unavailable.iter().any(|(g, v)| g == group && v == version)
    }

    pub fn set_unavailable(&mut self, group: &str, version: &str, unavailable: bool) {
        let place = (group.to_owned(), version.to_owned());
        if unavailable {
            self.unavailable.insert(place);
        } else {
            self.unavailable.remove(&place);
        }
    }

    /// Whether discovery lists the kinds of this group version.
    pub fn is_discoverable(&self, group: &str, version: &str) -> bool {
        !self.undiscoverable.iter().any(|(g, v)| g == group && v == version)
    }

    /// Sets whether discovery leaves out the kinds of a group version.
    pub fn set_undiscoverable(&mut self, group: &str, version: &str, undiscoverable: bool) {
        let place = (group.to_owned(), version.to_owned());
        if undiscoverable {
            self.undiscoverable.insert(place);
        } else {
            self.undiscoverable.remove(&place);
        }
    }
}

/// How a version ranks: stable ones before beta before alpha, of these the higher number first, then all other names.
fn maturity(version: &str) -> (u8, u64, u64) {
    let number = |text: &str| text.parse::<u64>().ok();
    let ranked = || {
        let rest = version.strip_prefix('v')?;
        if let Some(major) = number(rest) {
            return Some((3, major, 0));
        }
        let (rank, (major, minor)) = rest
            .split_once("beta")
            .map(|parts| (2, parts))
            .or_else(|| rest.split_once("alpha").map(|parts| (1, parts)))?;
        Some((rank, number(major)?, number(minor)?))
    };
    ranked().unwrap_or_default()
}
