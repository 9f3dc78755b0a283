//! Single cases that random clusters meet too seldom.

use super::{
    collector::Collector,
    world::{Key, World, never, to},
};
use crate::collector::{
    decide::Policy::{self, Background, Foreground, Orphan},
    graph::Reference,
    kinds::{Resource, Scope},
};

pub const APPLE: &str = "Apple";
pub const BIRCH: &str = "Birch";
pub const CEDAR: &str = "Cedar";

/// Objects of one namespace with their owners by name. All references block.
pub fn family(members: &[(&str, &[&str])]) -> World {
    let mut world = World::default();
    for (name, _) in members {
        assert!(world.create(APPLE, "n1", name, Vec::new(), false));
    }
    for (name, owners) in members {
        let owners = owners
            .iter()
            .map(|owner| to(&world, APPLE, "n1", owner, true))
            .collect();
        adopt(&mut world, &apple(name), owners);
    }
    world
}

pub fn apple(name: &str) -> Key {
    (APPLE.to_owned(), "n1".to_owned(), name.to_owned())
}

pub fn adopt(world: &mut World, key: &Key, owners: Vec<Reference>) {
    world.edit(key, |object| object.seen.owners = owners);
}

pub fn settled(world: &mut World) -> Collector {
    let mut collector = Collector::new();
    collector.settle(world);
    collector
}

pub fn names(world: &World) -> Vec<&str> {
    world.objects.keys().map(|key| key.2.as_str()).collect()
}

fn deleted(collector: &Collector) -> Vec<(&str, Policy)> {
    collector
        .deleted
        .iter()
        .map(|(name, policy)| (name.as_str(), *policy))
        .collect()
}

#[test]
fn in_the_background_the_owner_goes_first_and_all_below_follow() {
    let mut world = family(&[("a", &[]), ("b", &["a"]), ("c", &["b"]), ("other", &[])]);
    let mut collector = settled(&mut world);
    world.delete(&apple("a"), Background);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["other"]);
    assert_eq!(deleted(&collector), [("b", Background), ("c", Background)]);
    assert_eq!(collector.asked, 0, "events tell that the owners are gone");
}

#[test]
fn in_the_foreground_what_has_dependents_goes_in_the_foreground_too() {
    let mut world = family(&[("a", &[]), ("b", &["a"]), ("c", &["b"])]);
    let mut collector = settled(&mut world);
    world.delete(&apple("a"), Foreground);
    collector.settle(&mut world);
    assert_eq!(names(&world), [""; 0]);
    assert_eq!(deleted(&collector), [("b", Foreground), ("c", Background)]);
}

#[test]
fn a_circle_of_blocking_owners_is_opened() {
    let mut world = family(&[("a", &["c"]), ("b", &["a"]), ("c", &["b"])]);
    let mut collector = settled(&mut world);
    world.delete(&apple("a"), Foreground);
    collector.settle(&mut world);
    assert_eq!(names(&world), [""; 0]);
}

#[test]
fn whoever_owns_itself_is_no_reason_to_wait_for() {
    let mut world = family(&[("a", &["a"])]);
    let mut collector = settled(&mut world);
    world.delete(&apple("a"), Foreground);
    collector.settle(&mut world);
    assert_eq!(names(&world), [""; 0]);
}

#[test]
fn orphans_stay_without_the_reference() {
    let mut world = family(&[("a", &[]), ("b", &["a"]), ("c", &["a", "b"])]);
    let mut collector = settled(&mut world);
    world.delete(&apple("a"), Orphan);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["b", "c"]);
    assert!(world.objects[&apple("b")].seen.owners.is_empty());
    assert_eq!(world.objects[&apple("c")].seen.owners.len(), 1);
}

#[test]
fn with_another_owner_a_dependent_only_loses_the_reference() {
    let mut world = family(&[("a", &[]), ("b", &[]), ("c", &["a", "b"])]);
    let mut collector = settled(&mut world);
    for how in [Foreground, Background] {
        world.delete(&apple("a"), how);
        collector.settle(&mut world);
        assert_eq!(names(&world), ["b", "c"], "{how:?}");
        assert_eq!(world.objects[&apple("c")].seen.owners.len(), 1);
    }
}

#[test]
fn a_dependent_that_does_not_block_does_not_hold_its_owner() {
    let mut world = family(&[("a", &[]), ("b", &[])]);
    let reference = to(&world, APPLE, "n1", "a", false);
    world.edit(&apple("b"), |object| {
        (object.seen.owners, object.held) = (vec![reference], true);
    });
    let mut collector = settled(&mut world);
    world.delete(&apple("a"), Foreground);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["b"]);
    assert!(world.objects[&apple("b")].seen.deleting);
}

#[test]
fn a_foreground_deletion_begun_twice_ends_twice() {
    let mut world = family(&[("a", &[]), ("b", &["a"])]);
    world.edit(&apple("a"), |object| object.held = true);
    let mut collector = settled(&mut world);
    for _ in 0..2 {
        world.delete(&apple("a"), Foreground);
        collector.settle(&mut world);
        assert!(!world.objects[&apple("a")].seen.foreground);
    }
    assert_eq!(names(&world), ["a"]);
}

#[test]
fn a_successor_of_the_same_name_is_another_owner() {
    let mut world = family(&[("a", &[]), ("b", &["a"])]);
    let mut collector = settled(&mut world);
    world.delete(&apple("a"), Background);
    world.create(APPLE, "n1", "a", Vec::new(), false);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["a"]);
}

#[test]
fn a_version_that_is_not_served_names_the_same_owner() {
    let mut world = family(&[("a", &[]), ("b", &["a"])]);
    let mut reference = to(&world, APPLE, "n1", "a", true);
    reference.api_version = "v1alpha9".into();
    adopt(&mut world, &apple("b"), vec![reference]);
    let mut collector = settled(&mut world);
    assert_eq!((names(&world), collector.asked), (vec!["a", "b"], 0));
    world.delete(&apple("a"), Background);
    collector.settle(&mut world);
    assert_eq!(names(&world), [""; 0]);
}

#[test]
fn wrong_coordinates_harm_only_whoever_wrote_them() {
    let mut world = family(&[("a", &[]), ("good", &["a"])]);
    let right = to(&world, APPLE, "n1", "a", false);
    let mut wrong_name = right.clone();
    wrong_name.name = "b".into();
    world.create(APPLE, "n1", "wrong-name", vec![wrong_name], false);
    world.create(BIRCH, "n2", "wrong-namespace", vec![right.clone()], false);
    let mut wrong_kind = right;
    wrong_kind.kind = BIRCH.into();
    world.create(BIRCH, "n1", "wrong-kind", vec![wrong_kind], false);
    let collector = settled(&mut world);
    assert_eq!(names(&world), ["a", "good"]);
    assert_eq!(collector.asked, 3, "each is asked for once");
}

#[test]
fn absence_is_learned_once_for_all_dependents() {
    let mut world = World::default();
    let never = never(APPLE);
    for number in 0..100 {
        world.create(BIRCH, "n1", &format!("b{number}"), vec![never.clone()], false);
    }
    let collector = settled(&mut world);
    assert_eq!((world.objects.len(), collector.asked), (0, 1));
}

#[test]
fn a_cluster_scoped_object_of_a_namespaced_owner_is_left_alone() {
    let mut world = family(&[("a", &[])]);
    let owner = to(&world, APPLE, "n1", "a", true);
    world.create(CEDAR, "", "c", vec![owner], false);
    let mut collector = settled(&mut world);
    world.delete(&apple("a"), Background);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["c"]);
    assert_eq!(collector.asked, 0);
}

#[test]
fn a_kind_that_turns_out_to_be_cluster_scoped_leads_its_dependents_to_their_owner() {
    let mut world = World::default();
    world.create(CEDAR, "", "c", Vec::new(), false);
    let owner = to(&world, CEDAR, "", "c", true);
    world.create(APPLE, "n1", "a", vec![owner], false);
    let mut collector = Collector::new();
    let cedar = collector.graph.kinds.id("", CEDAR).unwrap();
    let resource = collector.graph.kinds.resource(cedar).cloned();
    // At first the kind is not known to be served.
    collector.graph.kinds.set_resource(cedar, None);
    collector.list(&mut world, 0);
    while collector.follow(&mut world, 0) {}
    assert_eq!((names(&world), collector.asked), (vec!["a", "c"], 0));
    collector.graph.kinds.set_resource(cedar, resource.clone());
    collector.graph.served(cedar);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["a", "c"]);
    assert!(matches!(
        resource,
        Some(Resource {
            scope: Scope::Cluster,
            ..
        })
    ));
    world.delete(&(CEDAR.into(), String::new(), "c".into()), Background);
    collector.settle(&mut world);
    assert_eq!(names(&world), [""; 0]);
}

#[test]
fn what_vanished_between_two_lists_is_asked_for_only_where_somebody_depends_on_it() {
    let mut world = family(&[("a", &[]), ("b", &["a"]), ("lone", &[])]);
    let mut collector = settled(&mut world);
    world.delete(&apple("a"), Background);
    world.delete(&apple("lone"), Background);
    collector.list(&mut world, 0);
    assert_eq!(collector.asked, 0);
    collector.settle(&mut world);
    assert_eq!((names(&world), collector.asked), (vec![], 1));
}

#[test]
fn what_could_not_be_asked_for_is_asked_for_when_its_kind_is_served() {
    let mut world = World::default();
    world.create(APPLE, "n1", "a", vec![never(BIRCH)], false);
    let mut collector = Collector::new();
    let birch = collector.graph.kinds.id("", BIRCH).unwrap();
    let resource = collector.graph.kinds.resource(birch).cloned();
    collector.graph.kinds.set_resource(birch, None);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["a"]);
    collector.graph.kinds.set_resource(birch, resource);
    collector.graph.served(birch);
    collector.settle(&mut world);
    assert_eq!((names(&world), collector.asked), (vec![], 1));
}

#[test]
fn of_what_vanished_together_between_two_lists_nothing_is_left() {
    let mut world = family(&[("a", &[]), ("b", &["a"]), ("c", &["b"])]);
    let mut collector = settled(&mut world);
    assert_eq!(collector.graph.len(), (3, 0));
    world.objects.clear();
    collector.list(&mut world, 0);
    collector.settle(&mut world);
    assert_eq!(collector.graph.len(), (0, 0));
}
