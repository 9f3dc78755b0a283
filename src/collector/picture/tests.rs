//! Pictures of small and large graphs.

use super::*;
use crate::collector::{
    graph::{Observed, Reference},
    kinds::{Resource, Scope},
};

/// An object of kind Apple in n1, with its name as UID.
fn apple(name: &str, owners: &[&str]) -> Observed {
    Observed {
        uid: name.to_owned(),
        namespace: "n1".to_owned(),
        name: name.to_owned(),
        owners: owners.iter().map(|owner| to("Apple", owner)).collect(),
        ..Observed::default()
    }
}

/// A blocking reference.
fn to(kind: &str, name: &str) -> Reference {
    Reference {
        api_version: "example.com/v1".to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        blocking: true,
    }
}

fn waiting(object: Observed) -> Observed {
    Observed {
        deleting: true,
        foreground: true,
        ..object
    }
}

fn graph(objects: impl IntoIterator<Item = Observed>) -> Graph {
    let mut graph = Graph::default();
    let apples = graph.kinds.id("example.com", "Apple").unwrap();
    let resource = Resource {
        version: "v1".to_owned(),
        plural: "apples".to_owned(),
        scope: Scope::Namespaced,
        short_names: Vec::new(),
    };
    graph.kinds.set_resource(apples, Some(resource));
    for object in objects {
        graph.observe(apples, &object);
    }
    graph
}

/// Asserts that the picture has these texts, in this order.
#[track_caller]
fn assert_has(picture: &str, texts: &[&str]) {
    let mut rest = picture;
    for text in texts {
        let Some((_, after)) = rest.split_once(text) else {
            panic!("{text} is not in {rest}, the end of {picture}");
        };
        rest = after;
    }
}

#[test]
fn the_reference_that_blocks_a_foreground_deletion_is_marked() {
    let mut free = apple("free", &["owner"]);
    free.owners[0].blocking = false;
    let held = Observed {
        deleting: true,
        ..apple("held", &["owner"])
    };
    let graph = graph([waiting(apple("owner", &[])), held, free]);
    let picture = around(&graph, "owner").unwrap();
    assert_has(
        &picture,
        &[
            "Apple.example.com\\nn1/owner\\nis being deleted",
            "0 owners, 2 dependents\\nwaits for 1 blocking dependent\"",
            "#ffe08a",
            "n1/held",
            "#cfe0fb",
            "n1 -> n0 [style=bold, color=\"#d0021b\"",
            "will be deleted in the background\\nApple.example.com n1/owner waits for it",
            "n2 -> n0 [style=dashed",
        ],
    );
}

#[test]
fn an_ownership_cycle_is_drawn_once_and_an_object_that_owns_itself_is_not_blocked() {
    let cycle = graph([waiting(apple("a", &["c"])), apple("b", &["a"]), apple("c", &["b"])]);
    let picture = around(&cycle, "b").unwrap();
    assert_eq!(
        (picture.matches("\\nn1/").count(), picture.matches(" -> ").count()),
        (3, 3)
    );
    let picture = around(&graph([waiting(apple("a", &["a"]))]), "a").unwrap();
    assert_has(
        &picture,
        &["loses the finalizer foregroundDeletion", "n0 -> n0 [style=solid"],
    );
}

#[test]
fn active_objects_are_drawn_with_those_connected_with_them() {
    let mut graph = graph([
        apple("idle", &[]),
        apple("child", &["unknown"]),
        Observed {
            owners: vec![to("Nowhere", "x")],
            ..apple("kept", &[])
        },
    ]);
    assert_eq!(around(&graph, "nothing"), None);
    let picture = active(&graph);
    assert_has(
        &picture,
        &[
            "2 of 2 active objects",
            "n1/unknown",
            "rounded,filled,dashed\", fillcolor=\"#ffffff",
        ],
    );
    assert_has(&picture, &["n1/kept", "#f6d0ea"]);
    assert!(!picture.contains("n1/idle"), "{picture}");
    for id in graph.with_uid("unknown") {
        graph.set_absent(id);
    }
    assert_has(&active(&graph), &["n1/unknown", "#e3e3e3"]);
    assert_has(&active(&Graph::default()), &["0 of 0 active objects", "}\n"]);
}

#[test]
fn the_number_of_objects_is_limited_and_names_are_escaped_and_shortened() {
    let name = format!("\"\\\n{}", "x".repeat(200));
    let to_owner = Reference {
        name: name.clone(),
        ..to("Apple", "owner")
    };
    let many = (0..100_000).map(|number| Observed {
        owners: vec![to_owner.clone()],
        ..apple(&number.to_string(), &[])
    });
    let owner = Observed {
        name,
        ..waiting(apple("owner", &[]))
    };
    let graph = graph(many.chain([owner]));
    let picture = around(&graph, "owner").unwrap();
    assert_eq!(picture.matches("shape=box").count(), 1);
    assert_eq!(picture.matches("[label=").count(), 1 + MAX_NEIGHBORS);
    assert_has(&picture, &["n1/\\\"\\\\\\\\n", "…", "0 owners, 100000 dependents"]);
    assert_eq!(active(&graph).matches("[label=").count(), 1 + MAX_NEIGHBORS);
}
