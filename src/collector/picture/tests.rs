//! Pictures of small and large graphs.

use super::{Appearance, Picture, Pictured, Presence, dot::dot};
use crate::collector::{
    graph::{Graph, Observed, Reference},
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
    };
    graph.kinds.set_resource(apples, Some(resource));
    for object in objects {
        graph.observe(apples, &object);
    }
    graph
}

fn around(graph: &Graph, uid: &str) -> Picture {
    Picture::around(graph, uid).unwrap()
}

fn names(picture: &Picture) -> Vec<&str> {
    picture.objects.iter().map(|object| object.name.as_str()).collect()
}

fn named<'a>(picture: &'a Picture, name: &str) -> &'a Pictured {
    picture.objects.iter().find(|object| object.name == name).unwrap()
}

fn decision_of<'a>(picture: &'a Picture, name: &str) -> &'a str {
    named(picture, name).decision.as_deref().unwrap_or_default()
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
    let picture = around(&graph, "owner");
    assert_eq!(names(&picture), ["owner", "held", "free"], "what holds up comes first");
    assert_eq!(decision_of(&picture, "owner"), "waits for 1 blocking dependent");
    assert_eq!(
        decision_of(&picture, "free"),
        "will be deleted in the background: Apple.example.com n1/owner waits for it"
    );
    let looks: Vec<Appearance> = picture.objects.iter().map(|object| object.class).collect();
    assert_eq!(looks, [Appearance::Waiting, Appearance::Deleting, Appearance::Deleting]);
    let text = dot(&picture);
    assert!(text.contains("n1 -> n0 [style=bold, color=\"#d0021b\""), "{text}");
    assert!(text.contains("n2 -> n0 [style=dashed"), "{text}");
    assert!(
        text.contains("Apple.example.com\\nn1/owner\\nbeing deleted, foregroundDeletion\\nwaits for 1"),
        "{text}"
    );
}

#[test]
fn an_object_that_owns_itself_is_not_drawn_as_blocked() {
    let graph = graph([waiting(apple("a", &["a"]))]);
    let picture = around(&graph, "a");
    assert_eq!((picture.objects.len(), picture.left_out), (1, 0));
    assert!(decision_of(&picture, "a").starts_with("no known blocking dependent is left"));
    assert!(picture.references[0].blocking && !picture.references[0].holds_up);
}

#[test]
fn an_ownership_cycle_is_drawn_once() {
    let graph = graph([waiting(apple("a", &["c"])), apple("b", &["a"]), apple("c", &["b"])]);
    let picture = around(&graph, "b");
    assert_eq!((picture.objects.len(), picture.references.len()), (3, 3));
    assert_eq!(
        decision_of(&picture, "b"),
        "will be deleted in the foreground: Apple.example.com n1/a waits for it"
    );
    assert_eq!(dot(&picture).matches("\\nn1/").count(), 3);
}

#[test]
fn virtual_absent_and_unresolved_owners_are_drawn_differently() {
    let mut graph = graph([
        apple("asks", &["never"]),
        apple("doomed", &["gone"]),
        Observed {
            owners: vec![to("Dodo", "extinct")],
            ..apple("kept", &[])
        },
    ]);
    let gone = graph.with_uid("gone")[0];
    graph.set_absent(gone);
    let picture = Picture::from_active(&graph);
    let state = |name| (named(&picture, name).state, named(&picture, name).class);
    assert_eq!(state("never"), (Presence::Virtual, Appearance::Virtual));
    assert_eq!(state("gone"), (Presence::Absent, Appearance::Absent));
    assert_eq!(state("asks"), (Presence::Observed, Appearance::Blocked));
    for (name, decision) in [
        (
            "asks",
            "kept until it is known whether Apple.example.com n1/never is there",
        ),
        ("doomed", "will be deleted in the background: none of its owners exists"),
        (
            "kept",
            "kept: its owner is of kind Dodo.example.com, which is not served",
        ),
    ] {
        assert_eq!(decision_of(&picture, name), decision);
    }
}

#[test]
fn an_object_missing_in_a_list_is_drawn_in_question() {
    let mut graph = graph([apple("owner", &[]), apple("dependent", &["owner"])]);
    let apples = graph.kinds.id("example.com", "Apple").unwrap();
    graph.begin_list(apples);
    graph.observe(apples, &apple("dependent", &["owner"]));
    graph.end_list(apples, 100);
    let picture = Picture::from_active(&graph);
    assert_eq!(named(&picture, "owner").state, Presence::Unconfirmed);
    assert_eq!(named(&picture, "dependent").class, Appearance::Blocked);
}

#[test]
fn idle_objects_are_not_in_the_picture_without_a_uid() {
    let graph = graph([
        apple("idle", &[]),
        apple("child", &["idle"]),
        waiting(apple("owner", &[])),
        apple("dependent", &["owner"]),
    ]);
    let picture = Picture::from_active(&graph);
    assert_eq!(names(&picture), ["owner", "dependent"]);
    assert_eq!(around(&graph, "idle").objects.len(), 2);
}

#[test]
fn an_unknown_uid_has_no_picture() {
    let graph = graph([apple("a", &[]), apple("b", &["a"])]);
    assert_eq!(Picture::around(&graph, "z"), None);
    assert_eq!(Picture::around(&graph, "0b9a8230-aace-4480-91d0-db24e46eb609"), None);
}

#[test]
fn an_owner_of_many_dependents_is_drawn_with_a_few_and_a_count() {
    let mut objects = vec![waiting(apple("owner", &[]))];
    for number in 0..100_000 {
        let mut object = apple(&format!("d{number}"), &["owner"]);
        object.owners[0].blocking = number % 100 == 3;
        object.deleting = true;
        objects.push(object);
    }
    let graph = graph(objects);
    let picture = around(&graph, "d99999");
    // The owner, the one asked for, and twenty more.
    assert_eq!((picture.objects.len(), picture.left_out), (22, 100_000 - 21));
    let owner = named(&picture, "owner");
    assert_eq!((owner.dependents, owner.blocking), (100_000, 1000));
    assert_eq!(
        (owner.more_dependents, owner.more_blocking),
        (99_979, 990),
        "the first that block are drawn"
    );
    assert_eq!(decision_of(&picture, "owner"), "waits for 1,000 blocking dependents");
    let more = "… and 99,979 more dependents, 990 blocking";
    assert!(dot(&picture).contains(more));

    let all = Picture::from_active(&graph);
    assert_eq!(
        all.objects.len(),
        21,
        "what one owner has too many of does not come in by itself"
    );
    assert_eq!(all.left_out, 100_001 - 21);
}

#[test]
fn the_number_of_references_is_limited() {
    let name = |number: usize| format!("a{number}");
    let objects = (0..400).map(|number| {
        let owners: Vec<String> = (0..number).map(name).collect();
        apple(&name(number), &owners.iter().map(String::as_str).collect::<Vec<_>>())
    });
    let picture = around(&graph(objects), "a0");
    assert_eq!((picture.objects.len(), picture.references.len()), (200, 400));
    let more = |object: &Pictured| object.more_owners + object.more_dependents;
    assert_eq!(picture.left_out, picture.objects.iter().map(more).sum::<u64>());
}

#[test]
fn names_are_escaped_and_shortened() {
    let odd = "a\"b\\n\n<c>&'d'\u{0}\u{202e}\u{fffe}";
    let seen = "a\"b\\n\\n<c>&'d'\\0\\u{202e}\\u{fffe}";
    let picture = around(&graph([apple("child", &[odd])]), "child");
    let text = dot(&picture);
    let quoted = seen.replace('\\', "\\\\").replace('"', "\\\"");
    assert!(text.contains(&format!("n1/{quoted}\\n")), "{text}");

    let long = format!("{}-tail", "é".repeat(100_000));
    let mut child = apple("child", &[&long]);
    child.owners[0].uid = "owner".to_owned();
    let picture = around(&graph([child]), "child");
    assert_eq!(picture.objects[1].name.chars().count(), 253);
    assert!(dot(&picture).len() < 10_000, "a long name makes no wide picture");
}

#[test]
fn a_picture_survives_json_and_is_drawn_deterministically() {
    let graph = graph([
        waiting(apple("a", &["c"])),
        apple("b", &["a"]),
        apple("c", &["b", "never"]),
    ]);
    let picture = Picture::from_active(&graph);
    let json = serde_json::to_string(&picture).unwrap();
    assert_eq!(serde_json::from_str::<Picture>(&json).unwrap(), picture);
    assert_eq!(dot(&picture), dot(&picture));
    assert!(
        json.contains(r#""holdsUp":true"#) && json.contains(r#""state":"virtual""#),
        "{json}"
    );
}

#[test]
fn an_empty_graph_has_a_picture() {
    let picture = Picture::from_active(&Graph::default());
    assert!(dot(&picture).contains("Active objects in the collector's graph: 0 objects"));
}
