//! The rules, written down plainly, against what the server holds. It knows nothing of the collector's graph.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::world::Cluster;

/// Group version, kind, and whether it is in namespaces; the other version of the first is the same kind.
pub const KINDS: [(&str, &str, bool); 5] = [
    ("a.test/v1", "Thing", true),
    ("b.test/v1", "Thing", false),
    ("v1", "ConfigMap", true),
    ("v1", "Secret", true),
    ("v1", "PersistentVolume", false),
];

/// Kind and group, namespace and name.
type Place = (String, String, String);

#[derive(Debug, Clone)]
struct Object {
    uid: String,
    deleting: bool,
    finalizers: Vec<String>,
    owners: Vec<Owner>,
}

#[derive(Debug, Clone, PartialEq)]
struct Owner {
    /// Nowhere, if there is no such place: an object without a namespace names one that is in some.
    place: Option<Place>,
    uid: String,
    served: bool,
    blocking: bool,
}

type World = BTreeMap<Place, Object>;

#[derive(Default)]
pub struct Judge {
    before: World,
    /// Whom somebody deletes in the foreground before the next look; that may be over by then.
    pub deleted: Option<String>,
    /// UIDs of owners that were seen to orphan.
    orphaned: BTreeSet<String>,
    seen: BTreeSet<String>,
}

fn group(version: &str) -> &str {
    version.rsplit_once('/').map_or("", |(group, _)| group)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn read(kind: (&str, &str, bool), object: &Value) -> (Place, Object) {
    let metadata = &object["metadata"];
    let namespace = text(&metadata["namespace"]);
    let owner = |reference: &Value| {
        let (version, name) = (text(&reference["apiVersion"]), text(&reference["kind"]));
        let known = KINDS.iter().find(|it| it.1 == name && group(it.0) == group(&version));
        let home = match known {
            Some((_, _, true)) if namespace.is_empty() => None,
            Some((_, _, true)) => Some(namespace.clone()),
            Some((_, _, false)) | None => Some(String::new()),
        };
        Owner {
            place: home.map(|home| (format!("{name}.{}", group(&version)), home, text(&reference["name"]))),
            uid: text(&reference["uid"]),
            served: known.is_some(),
            blocking: reference["blockOwnerDeletion"] == true,
        }
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let place = (
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
    (place, object)
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

    fn waits(&self) -> bool {
        self.deleting && self.has("foregroundDeletion")
    }

    fn orphans(&self) -> bool {
        self.deleting && self.has("orphan")
    }
}

fn found<'w>(world: &'w World, owner: &Owner) -> Option<&'w Object> {
    world.get(owner.place.as_ref()?).filter(|it| it.uid == owner.uid)
}

// === impl Judge ===

impl Judge {
    /// Compares what there is with what there was.
    pub fn look(&mut self, cluster: &Cluster) {
        let now = world(cluster);
        if std::env::var_os("MEM_GC_TRACE").is_some() {
            for it in cluster.api.requests().iter().filter(|it| !it.asked.name.is_empty()) {
                let what = (&it.asked.verb, &it.asked.path, it.code);
                eprintln!("{:?} {} {what:?}", tokio::time::Instant::now(), it.asked.user);
            }
        }
        for (place, was) in &self.before {
            let is = now.get(place).filter(|is| is.uid == was.uid);
            let begins = !was.deleting && is.is_none_or(|is| is.deleting);
            if begins && is_by_collector(cluster, place) {
                let reason = self.must_stay(&now, was);
                assert_eq!(reason, None, "{place:?} was deleted: {was:#?}");
            }
        }
        for object in now.values() {
            self.seen.insert(object.uid.clone());
            if object.orphans() {
                self.orphaned.insert(object.uid.clone());
            } else {
                self.orphaned.remove(&object.uid);
            }
        }
        self.before = now;
        self.deleted = None;
        cluster.api.forget_requests();
    }

    /// The collector that remembered who orphaned is no more.
    pub fn forget(&mut self) {
        self.orphaned.clear();
    }

    /// An owner that orphans stands there, or orphaned and is nowhere.
    fn was_left_by(&self, owner: &Owner) -> bool {
        let is_somewhere = self.before.values().any(|it| it.uid == owner.uid);
        self.orphaned.contains(&owner.uid) && (found(&self.before, owner).is_some() || !is_somewhere)
    }

    /// Why an object may not have been deleted between two looks.
    fn must_stay(&self, world: &World, was: &Object) -> Option<String> {
        if was.owners.is_empty() {
            return Some("it has no owners".to_owned());
        }
        // Whoever is released from one that orphans is judged by its other owners alone.
        let solid = |world: &World, owner: &Owner| {
            found(world, owner)
                .filter(|it| !it.waits() && !it.orphans())
                .map(|it| it.deleting)
        };
        for owner in &was.owners {
            let (then, now) = (solid(&self.before, owner), solid(world, owner));
            if then.is_some() && then == now && self.deleted.as_ref() != Some(&owner.uid) {
                return Some(format!("{owner:?} lives"));
            }
            // A UID that was seen and is nowhere is dead, of whatever kind it is said to be.
            let is_dead = self.seen.contains(&owner.uid) && !world.values().any(|it| it.uid == owner.uid);
            if (owner.place.is_none() || !owner.served) && !is_dead {
                return Some(format!("nobody can tell of {owner:?}"));
            }
        }
        let all_left = was.owners.iter().all(|owner| self.was_left_by(owner));
        all_left.then(|| "its owners left it behind".to_owned())
    }

    /// When all has settled.
    pub fn complain(&self, cluster: &Cluster) {
        let now = world(cluster);
        let complaints: Vec<String> = now
            .iter()
            .filter_map(|(place, object)| Some(format!("{place:?}: {}", self.complaint(&now, place, object)?)))
            .collect();
        let report = cluster.report();
        assert!(complaints.is_empty(), "{complaints:#?}\n{now:#?}\n{report:#?}");
    }

    fn complaint(&self, now: &World, place: &Place, object: &Object) -> Option<&'static str> {
        if object.orphans() {
            return Some("its dependents are not released");
        }
        if object.waits() {
            let blocks =
                |owner: &Owner| owner.blocking && owner.uid == object.uid && owner.place.as_ref() == Some(place);
            let mut others = now.iter().filter(|(other, _)| *other != place);
            let blocked = others.any(|(_, other)| other.owners.iter().any(blocks));
            return (!blocked).then_some("nothing blocks it");
        }
        if object.deleting {
            return None;
        }
        // Of these nobody can tell; those that are dead only whoever saw it knows.
        let untold = |owner: &Owner| found(now, owner).is_none() && (owner.place.is_none() || !owner.served);
        if object.owners.iter().any(untold) {
            return None;
        }
        let solid = object
            .owners
            .iter()
            .filter(|owner| found(now, owner).is_some_and(|it| !it.waits()));
        match (solid.count(), object.owners.len()) {
            (_, 0) => None,
            (0, _) => Some("none of its owners stays"),
            (solid, all) if solid < all => Some("it names owners that are gone or go"),
            _ => None,
        }
    }
}

/// Whether the collector asked for the deletion of what is at this place since the last look, and may have got it.
fn is_by_collector(cluster: &Cluster, (kind, namespace, name): &Place) -> bool {
    let (kind, group) = kind.split_once('.').unwrap_or((kind, ""));
    let plural = format!("{}s", kind.to_lowercase());
    let home = if group.is_empty() {
        "/api/".to_owned()
    } else {
        format!("/apis/{group}/")
    };
    let is_it = |verb: &str, asked: &testbed::apiserver::requests::Asked| {
        asked.verb == verb
            && asked.resource == plural
            && asked.path.starts_with(&home)
            && (&asked.namespace, &asked.name) == (namespace, name)
    };
    // Where somebody else deleted it too, nobody can tell.
    let all = cluster.api.requests();
    let others = all
        .iter()
        .any(|it| it.asked.user != crate::world::COLLECTOR && is_it("delete", &it.asked));
    let ours = cluster.requests();
    !others
        && ours
            .iter()
            .any(|it| is_it("delete", &it.asked) && matches!(it.code, None | Some(200 | 202)))
}
