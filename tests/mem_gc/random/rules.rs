//! The rules, written plainly and applied to the server's objects. It does not use the collector's graph.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::world::Cluster;

/// Group version, kind, and whether it is namespaced. The first kind has another version as well.
pub const KINDS: [(&str, &str, bool); 5] = [
    ("a.test/v1", "Thing", true),
    ("b.test/v1", "Thing", false),
    ("v1", "ConfigMap", true),
    ("v1", "Secret", true),
    ("v1", "PersistentVolume", false),
];

/// Kind and group, namespace, and name.
type Key = (String, String, String);

#[derive(Debug, Clone)]
struct Object {
    uid: String,
    deleting: bool,
    finalizers: Vec<String>,
    owners: Vec<Owner>,
}

#[derive(Debug, Clone, PartialEq)]
struct Owner {
    /// `None` if a cluster-scoped object names a namespaced owner.
    key: Option<Key>,
    uid: String,
    served: bool,
    blocking: bool,
}

type World = BTreeMap<Key, Object>;

#[derive(Default)]
pub struct Rules {
    before: World,
    /// UID of an object that a client deletes before the next check.
    pub deleted: Option<String>,
    /// UIDs of owners seen in orphan deletion.
    orphaned: BTreeSet<String>,
    seen: BTreeSet<String>,
}

fn group(version: &str) -> &str {
    version.rsplit_once('/').map_or("", |(group, _)| group)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn read(kind: (&str, &str, bool), object: &Value) -> (Key, Object) {
    let metadata = &object["metadata"];
    let namespace = text(&metadata["namespace"]);
    let owner = |reference: &Value| {
        let (version, name) = (text(&reference["apiVersion"]), text(&reference["kind"]));
        let known = KINDS.iter().find(|it| it.1 == name && group(it.0) == group(&version));
        let namespace_of_owner = match known {
            Some((_, _, true)) if namespace.is_empty() => None,
            Some((_, _, true)) => Some(namespace.clone()),
            Some((_, _, false)) | None => Some(String::new()),
        };
        Owner {
            key: namespace_of_owner.map(|namespace_of_owner| {
                (
                    format!("{name}.{}", group(&version)),
                    namespace_of_owner,
                    text(&reference["name"]),
                )
            }),
            uid: text(&reference["uid"]),
            served: known.is_some(),
            blocking: reference["blockOwnerDeletion"] == true,
        }
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let key = (
        format!("{}.{}", kind.1, group(kind.0)),
        namespace.clone(),
        text(&metadata["name"]),
    );
    let object = Object {
        uid: text(&metadata["uid"]),
        deleting: metadata["deletionTimestamp"].is_string(),
        finalizers: list(&metadata["finalizers"]).iter().map(text).collect(),
        owners: list(&metadata["ownerReferences"]).iter().map(owner).collect(),
    };
    (key, object)
}

fn world(cluster: &Cluster) -> World {
    let of_kind = |kind: (&'static str, &'static str, bool)| {
        let all = cluster.api.objects(kind.0, kind.1).into_iter();
        all.map(move |object| read(kind, &object))
    };
    KINDS.into_iter().flat_map(of_kind).collect()
}

// === impl Object ===

impl Object {
    fn has(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|it| it == finalizer)
    }

    fn in_foreground_deletion(&self) -> bool {
        self.deleting && self.has("foregroundDeletion")
    }

    fn in_orphan_deletion(&self) -> bool {
        self.deleting && self.has("orphan")
    }
}

fn found<'w>(world: &'w World, owner: &Owner) -> Option<&'w Object> {
    world.get(owner.key.as_ref()?).filter(|it| it.uid == owner.uid)
}

// === impl Rules ===

impl Rules {
    /// Compares the server's objects with those of the last check.
    pub fn check(&mut self, cluster: &Cluster) {
        let now = world(cluster);
        for (key, was) in &self.before {
            let is = now.get(key).filter(|is| is.uid == was.uid);
            let begins = !was.deleting && is.is_none_or(|is| is.deleting);
            if begins && is_by_collector(cluster, key) {
                let reason = self.must_stay(&now, was);
                assert_eq!(reason, None, "{key:?} was deleted: {was:#?}");
            }
        }
        for object in now.values() {
            self.seen.insert(object.uid.clone());
            if object.in_orphan_deletion() {
                self.orphaned.insert(object.uid.clone());
            } else {
                self.orphaned.remove(&object.uid);
            }
        }
        self.before = now;
        self.deleted = None;
        cluster.api.forget_requests();
    }

    /// A new collector does not know which owners have orphaned.
    pub fn forget_orphaned(&mut self) {
        self.orphaned.clear();
    }

    /// Whether the owner is in orphan deletion, or was and is deleted.
    fn was_orphaned_by(&self, owner: &Owner) -> bool {
        let is_somewhere = self.before.values().any(|it| it.uid == owner.uid);
        self.orphaned.contains(&owner.uid) && (found(&self.before, owner).is_some() || !is_somewhere)
    }

    /// Why the collector must not have deleted an object since the last check.
    fn must_stay(&self, world: &World, was: &Object) -> Option<String> {
        if was.owners.is_empty() {
            return Some("it has no owners".to_owned());
        }
        // After an orphaning owner's reference is dropped, the other owners decide.
        let existing = |world: &World, owner: &Owner| {
            found(world, owner)
                .filter(|it| !it.in_foreground_deletion() && !it.in_orphan_deletion())
                .map(|it| it.deleting)
        };
        for owner in &was.owners {
            let (then, now) = (existing(&self.before, owner), existing(world, owner));
            if then.is_some() && then == now && self.deleted.as_ref() != Some(&owner.uid) {
                return Some(format!("{owner:?} lives"));
            }
            // A seen UID that no object has is deleted, of whatever kind it is said to be.
            let is_dead = self.seen.contains(&owner.uid) && !world.values().any(|it| it.uid == owner.uid);
            if (owner.key.is_none() || !owner.served) && !is_dead {
                return Some(format!("{owner:?} is unresolved"));
            }
        }
        let all_orphaned = was.owners.iter().all(|owner| self.was_orphaned_by(owner));
        all_orphaned.then(|| "its owners left it behind".to_owned())
    }

    /// Fails if any object breaks a rule. Everything has settled.
    pub fn check_settled(&self, cluster: &Cluster) {
        let now = world(cluster);
        let violations: Vec<String> = now
            .iter()
            .filter_map(|(key, object)| Some(format!("{key:?}: {}", self.violation(&now, key, object)?)))
            .collect();
        let report = cluster.report();
        assert!(violations.is_empty(), "{violations:#?}\n{now:#?}\n{report:#?}");
    }

    fn violation(&self, now: &World, key: &Key, object: &Object) -> Option<&'static str> {
        if object.in_orphan_deletion() {
            return Some("its dependents are not released");
        }
        if object.in_foreground_deletion() {
            let blocks = |owner: &Owner| owner.blocking && owner.uid == object.uid && owner.key.as_ref() == Some(key);
            let mut others = now.iter().filter(|(other, _)| *other != key);
            let blocked = others.any(|(_, other)| other.owners.iter().any(blocks));
            return (!blocked).then_some("nothing blocks it");
        }
        if object.deleting {
            return None;
        }
        // These owners are unknown; the collector may know that one is deleted.
        let is_unresolved = |owner: &Owner| found(now, owner).is_none() && (owner.key.is_none() || !owner.served);
        if object.owners.iter().any(is_unresolved) {
            return None;
        }
        let existing = object
            .owners
            .iter()
            .filter(|owner| found(now, owner).is_some_and(|it| !it.in_foreground_deletion()));
        match (existing.count(), object.owners.len()) {
            (_, 0) => None,
            (0, _) => Some("none of its owners stays"),
            (existing, all) if existing < all => Some("it names owners that are gone or go"),
            _ => None,
        }
    }
}

/// Whether the collector sent a DELETE for this object since the last check that may have succeeded.
fn is_by_collector(cluster: &Cluster, (kind, namespace, name): &Key) -> bool {
    let (kind, group) = kind.split_once('.').unwrap_or((kind, ""));
    let plural = format!("{}s", kind.to_lowercase());
    let namespace_of_owner = if group.is_empty() {
        "/api/".to_owned()
    } else {
        format!("/apis/{group}/")
    };
    let matches = |verb: &str, asked: &testbed::apiserver::requests::Asked| {
        asked.verb == verb
            && asked.resource == plural
            && asked.path.starts_with(&namespace_of_owner)
            && (&asked.namespace, &asked.name) == (namespace, name)
    };
    // If another client deleted it too, it is unknown which one succeeded.
    let all = cluster.api.requests();
    let others = all
        .iter()
        .any(|it| it.asked.user != crate::world::COLLECTOR && matches("delete", &it.asked));
    let own_requests = cluster.requests();
    !others
        && own_requests
            .iter()
            .any(|it| matches("delete", &it.asked) && matches!(it.code, None | Some(200 | 202)))
}
