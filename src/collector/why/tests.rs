use std::time::Duration;

use super::*;
use crate::collector::{
    discovery::Discovered,
    graph::{Observed, Reference, WorkItem},
    kinds::{Resource, Scope},
    shared::Shared,
};

/// Served kinds: group, kind, plural.
const KINDS: [(&str, &str, &str); 3] = [
    ("apps", "Deployment", "deployments"),
    ("apps", "ReplicaSet", "replicasets"),
    ("", "Pod", "pods"),
];

struct World {
    shared: Shared,
    version: u64,
}

fn uid(name: &str) -> String {
    let number: u32 = name.bytes().fold(0, |sum, byte| sum * 31 % 65_521 + u32::from(byte));
    format!("00000000-0000-4000-8000-{number:012x}")
}

/// A blocking reference.
fn to(kind: &str, name: &str) -> Reference {
    let group = KINDS.iter().find(|it| it.1 == kind).map_or("gone.example", |it| it.0);
    Reference {
        api_version: if group.is_empty() {
            "v1".to_owned()
        } else {
            format!("{group}/v1")
        },
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid(name),
        blocking: true,
    }
}

impl World {
    /// All kinds are served.
    fn new() -> Self {
        let shared = Shared::default();
        shared.with(|core| {
            core.sync_state.record_discovery(&Discovered::default(), Instant::now());
            for (group, kind, plural) in KINDS {
                let id = core.graph.kinds.id(group, kind).unwrap();
                let resource = Resource {
                    version: "v1".to_owned(),
                    plural: plural.to_owned(),
                    scope: Scope::Namespaced,
                    short_names: vec![plural.chars().take(6).collect()],
                };
                core.graph.kinds.set_resource(id, Some(resource));
            }
        });
        Self { shared, version: 0 }
    }

    /// `how`: `there`, `goes`, `foreground` or `orphan`.
    fn is(&mut self, kind: &str, name: &str, how: &str, owners: Vec<Reference>) {
        self.version += 1;
        let object = Observed {
            uid: uid(name),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            version: self.version,
            deleting: how != "there",
            orphan: how == "orphan",
            foreground: how == "foreground",
            owners,
        };
        self.shared.with(|core| {
            let group = KINDS.iter().find(|it| it.1 == kind).unwrap().0;
            let id = core.graph.kinds.id(group, kind).unwrap();
            core.graph.observe(id, &object);
        });
    }

    fn ask(&self, name: &str) -> Result<Explanation, String> {
        explain(&self.shared.lock(), &name.parse().unwrap(), Instant::now()).map_err(|why| why.to_string())
    }

    #[track_caller]
    fn why(&self, name: &str) -> (Vec<String>, String, String) {
        let why = self.ask(name).unwrap();
        let objects = why.objects.iter().map(|it| it.object.clone()).collect();
        (objects, why.end.clone(), why.text())
    }
}

/// A Deployment in foreground deletion, blocked by a Pod with a finalizer of another controller.
fn hanging() -> World {
    let mut world = World::new();
    world.is("Deployment", "web", "foreground", vec![]);
    world.is("ReplicaSet", "web-1", "foreground", vec![to("Deployment", "web")]);
    world.is("ReplicaSet", "web-2", "goes", vec![to("Deployment", "web")]);
    world.is("Pod", "web-1-a", "goes", vec![to("ReplicaSet", "web-1")]);
    world
}

#[test]
fn the_chain_ends_at_the_blocking_object_with_a_command_for_its_finalizers() {
    let (objects, end, text) = hanging().why("Deployment.apps/shop/web");
    assert_eq!(
        objects,
        [
            "Deployment.apps shop/web",
            "ReplicaSet.apps shop/web-1",
            "Pod shop/web-1-a"
        ]
    );
    for words in [
        "All wait for Pod shop/web-1-a",
        "kubectl get pods web-1-a -n shop -o jsonpath='{.metadata.finalizers}'",
    ] {
        assert!(end.contains(words), "{words} is not in {end}");
    }
    for words in [
        "waits for 2 blocking dependents",
        "blocked by ReplicaSet.apps shop/web-2: is being deleted",
        "waits for Pod shop/web-1-a",
        "owner ReplicaSet.apps shop/web-1: is being deleted",
    ] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
}

#[test]
fn an_object_is_found_by_uid_kind_or_plural_and_an_ambiguous_name_is_an_error() {
    let mut world = hanging();
    for name in [
        "deployment/web",
        "deployments.apps/shop/web",
        "DEPLOYMENT.apps/web",
        &uid("web"),
    ] {
        assert_eq!(world.why(name).0[0], "Deployment.apps shop/web", "{name}");
    }
    for (name, words) in [
        ("Pod/shop/other", "is neither an owner nor a dependent"),
        ("Deployment.batch/shop/web", "no kind is called Deployment.batch"),
        ("11111111-1111-4111-8111-111111111111", "no object with UID"),
    ] {
        let error = world.ask(name).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    world.is("Pod", "lone", "there", vec![]);
    let error = world.ask(&uid("lone")).unwrap_err();
    assert!(error.contains("a Pod without owners"), "{error}");
    world.shared.with(|core| {
        let pod = core.graph.kinds.id("", "Pod").unwrap();
        let object = Observed {
            uid: uid("another"),
            namespace: "home".to_owned(),
            name: "web-1-a".to_owned(),
            deleting: true,
            ..Observed::default()
        };
        core.graph.observe(pod, &object);
    });
    let error = world.ask("pod/web-1-a").unwrap_err();
    assert!(
        error.contains("Pod home/web-1-a (uid") && error.contains(&uid("web-1-a")),
        "{error}"
    );
    assert_eq!(world.why("pod/shop/web-1-a").0.len(), 1);
}

#[test]
fn objects_that_wait_for_each_other_are_reported_as_an_ownership_cycle() {
    let mut world = World::new();
    world.is("ReplicaSet", "a", "foreground", vec![to("ReplicaSet", "b")]);
    world.is("ReplicaSet", "b", "foreground", vec![to("ReplicaSet", "a")]);
    let (objects, end, _) = world.why("replicasets/a");
    assert_eq!(objects, ["ReplicaSet.apps shop/a", "ReplicaSet.apps shop/b"]);
    assert!(end.contains("b waits for ReplicaSet.apps shop/a again"), "{end}");
    // With a blocker outside of the cycle, that one explains the wait.
    world.is("Pod", "c", "goes", vec![to("ReplicaSet", "a")]);
    let (_, end, _) = world.why("replicasets/b");
    assert!(end.contains("All wait for Pod shop/c"), "{end}");
}

#[test]
fn a_kept_object_names_the_unserved_kind_and_an_orphaning_owner_the_remaining_reference() {
    let mut world = World::new();
    world.is("Pod", "kept", "there", vec![to("Widget", "w")]);
    let (_, end, text) = world.why("Pod/kept");
    for words in [
        "the reference to Widget.gone.example shop/w",
        "is removed: its kind is not served",
    ] {
        assert!(text.contains(words) && end.contains(words), "{text}");
    }

    world.is("ReplicaSet", "old", "orphan", vec![]);
    world.is("Pod", "stays", "there", vec![to("ReplicaSet", "old")]);
    let (objects, end, _) = world.why("replicaset/old");
    assert_eq!(objects, ["ReplicaSet.apps shop/old", "Pod shop/stays"]);
    assert!(end.contains("loses the reference to ReplicaSet.apps shop/old"), "{end}");
}

#[test]
fn an_object_kept_for_an_unresolvable_reference_names_it() {
    let mut world = World::new();
    let damaged = Reference {
        name: "we\u{fffd}b".to_owned(),
        uid: "\u{fffd}".to_owned(),
        ..to("ReplicaSet", "web")
    };
    world.is("Pod", "kept", "there", vec![to("Widget", "w"), damaged]);
    let (_, end, text) = world.why("Pod/kept");
    let owner = "owner something unknown: the reference to it cannot be resolved";
    assert!(text.contains(owner), "{text}");
    assert!(
        end.ends_with("is removed: the reference to it cannot be resolved."),
        "{end}"
    );
}

#[test]
fn the_last_error_is_shown_and_a_failing_blocker_is_preferred() {
    let mut world = hanging();
    for name in ["web-1-b", "web-1-c", "web-1-d"] {
        world.is("Pod", name, "there", vec![to("ReplicaSet", "web-1")]);
    }
    world.shared.with(|core| {
        let id = core.graph.with_uid(&uid("web-1-c"))[0];
        let (item, now) = (WorkItem::Decide(id), Instant::now());
        core.queue.add(item, core.graph.node(id).kind, now);
        core.queue
            .add_rate_limited(item, "DELETE /api/v1: 403 Forbidden", Some(Duration::from_secs(9)), now);
    });
    let (objects, end, text) = world.why("deployment.apps/web");
    assert_eq!(objects.last().map(String::as_str), Some("Pod shop/web-1-c"));
    assert!(end.contains("fails, see above"), "{end}");
    assert!(
        text.contains("failed 1 times, last: DELETE /api/v1: 403 Forbidden"),
        "{text}"
    );
}

#[test]
fn a_finalizer_that_stays_for_an_unsynced_kind_names_it() {
    let mut world = World::new();
    world.is("ReplicaSet", "last", "foreground", vec![]);
    world.shared.with(|core| {
        let found = Discovered {
            failed: [("metrics.k8s.io".to_owned(), vec!["v1".to_owned()])].into(),
            ..Discovered::default()
        };
        core.sync_state.record_discovery(&found, Instant::now());
    });
    let (_, end, text) = world.why("replicaset/last");
    assert!(
        text.contains("metrics.k8s.io") && end.contains("until every kind is synced"),
        "{text}"
    );
}

#[test]
fn the_length_of_a_chain_is_limited() {
    let mut world = World::new();
    world.is("ReplicaSet", "0", "foreground", vec![]);
    for number in 1..200 {
        let owner = to("ReplicaSet", &(number - 1).to_string());
        world.is("ReplicaSet", &number.to_string(), "foreground", vec![owner]);
    }
    let (objects, end, _) = world.why("replicaset/0");
    assert_eq!(objects.len(), 100);
    assert!(
        end.contains("ReplicaSet.apps shop/99: it waits for 1 blocking dependent"),
        "{end}"
    );
}

#[tokio::test(start_paused = true)]
async fn short_names_are_accepted_and_an_unknown_kind_is_named() {
    let mut world = World::new();
    world.is("Deployment", "web", "foreground", Vec::new());
    for name in [
        "deploy/web",
        "DEPLOY.apps/shop/web",
        "deployments/web",
        "Deployment/shop/web",
    ] {
        assert!(world.ask(name).is_ok(), "{name}");
    }
    for (name, words) in [
        ("replicaste/web", "no kind is called replicaste: none is served"),
        ("deploy.extensions/web", "no kind is called deploy.extensions:"),
        ("pods/web", "use its UID"),
    ] {
        let error = world.ask(name).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}
