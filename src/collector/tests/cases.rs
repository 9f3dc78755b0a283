//! Single cases that random clusters meet too seldom.

use super::{
    collector::Collector,
    world::{Key, World, absent_owner, to},
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

pub fn settled_collector(world: &mut World) -> Collector {
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
fn background_deletion_deletes_the_owner_first_and_then_its_dependents() {
    let mut world = family(&[("a", &[]), ("b", &["a"]), ("c", &["b"]), ("other", &[])]);
    let mut collector = settled_collector(&mut world);
    world.delete(&apple("a"), Background);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["other"]);
    assert_eq!(deleted(&collector), [("b", Background), ("c", Background)]);
    assert_eq!(collector.asked, 0, "events tell that the owners are gone");
}

#[test]
fn foreground_deletion_passes_to_dependents_with_dependents() {
    let mut world = family(&[("a", &[]), ("b", &["a"]), ("c", &["b"])]);
    let mut collector = settled_collector(&mut world);
    world.delete(&apple("a"), Foreground);
    collector.settle(&mut world);
    assert_eq!(names(&world), [""; 0]);
    assert_eq!(deleted(&collector), [("b", Foreground), ("c", Background)]);
}

#[test]
fn an_ownership_cycle_of_blocking_references_is_deleted() {
    let mut world = family(&[("a", &["c"]), ("b", &["a"]), ("c", &["b"])]);
    let mut collector = settled_collector(&mut world);
    world.delete(&apple("a"), Foreground);
    collector.settle(&mut world);
    assert_eq!(names(&world), [""; 0]);
}

#[test]
fn an_object_that_owns_itself_does_not_block_itself() {
    let mut world = family(&[("a", &["a"])]);
    let mut collector = settled_collector(&mut world);
    world.delete(&apple("a"), Foreground);
    collector.settle(&mut world);
    assert_eq!(names(&world), [""; 0]);
}

#[test]
fn orphans_stay_and_drop_the_reference() {
    let mut world = family(&[("a", &[]), ("b", &["a"]), ("c", &["a", "b"])]);
    let mut collector = settled_collector(&mut world);
    world.delete(&apple("a"), Orphan);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["b", "c"]);
    assert!(world.objects[&apple("b")].seen.owners.is_empty());
    assert_eq!(world.objects[&apple("c")].seen.owners.len(), 1);
}

#[test]
fn a_dependent_with_another_owner_only_drops_the_reference() {
    let mut world = family(&[("a", &[]), ("b", &[]), ("c", &["a", "b"])]);
    let mut collector = settled_collector(&mut world);
    for how in [Foreground, Background] {
        world.delete(&apple("a"), how);
        collector.settle(&mut world);
        assert_eq!(names(&world), ["b", "c"], "{how:?}");
        assert_eq!(world.objects[&apple("c")].seen.owners.len(), 1);
    }
}

#[test]
fn a_dependent_without_block_owner_deletion_does_not_block_its_owner() {
    let mut world = family(&[("a", &[]), ("b", &[])]);
    let reference = to(&world, APPLE, "n1", "a", false);
    world.edit(&apple("b"), |object| {
        (object.seen.owners, object.has_other_finalizer) = (vec![reference], true);
    });
    let mut collector = settled_collector(&mut world);
    world.delete(&apple("a"), Foreground);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["b"]);
    assert!(world.objects[&apple("b")].seen.deleting);
}

#[test]
fn a_repeated_foreground_deletion_finishes_again() {
    let mut world = family(&[("a", &[]), ("b", &["a"])]);
    world.edit(&apple("a"), |object| object.has_other_finalizer = true);
    let mut collector = settled_collector(&mut world);
    for _ in 0..2 {
        world.delete(&apple("a"), Foreground);
        collector.settle(&mut world);
        assert!(!world.objects[&apple("a")].seen.foreground);
    }
    assert_eq!(names(&world), ["a"]);
}

#[test]
fn a_new_object_of_the_same_name_is_another_owner() {
    let mut world = family(&[("a", &[]), ("b", &["a"])]);
    let mut collector = settled_collector(&mut world);
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
    let mut collector = settled_collector(&mut world);
    assert_eq!((names(&world), collector.asked), (vec!["a", "b"], 0));
    world.delete(&apple("a"), Background);
    collector.settle(&mut world);
    assert_eq!(names(&world), [""; 0]);
}

#[test]
fn wrong_coordinates_affect_only_their_own_object() {
    let mut world = family(&[("a", &[]), ("good", &["a"])]);
    let right = to(&world, APPLE, "n1", "a", false);
    let mut wrong_name = right.clone();
    wrong_name.name = "b".into();
    world.create(APPLE, "n1", "wrong-name", vec![wrong_name], false);
    world.create(BIRCH, "n2", "wrong-namespace", vec![right.clone()], false);
    let mut wrong_kind = right;
    wrong_kind.kind = BIRCH.into();
    world.create(BIRCH, "n1", "wrong-kind", vec![wrong_kind], false);
    let collector = settled_collector(&mut world);
    assert_eq!(names(&world), ["a", "good"]);
    assert_eq!(collector.asked, 3, "each is asked for once");
}

#[test]
fn one_get_finds_an_owner_absent_for_all_dependents() {
    let mut world = World::default();
    let absent_owner = absent_owner(APPLE);
    for number in 0..100 {
        world.create(BIRCH, "n1", &format!("b{number}"), vec![absent_owner.clone()], false);
    }
    let collector = settled_collector(&mut world);
    assert_eq!((world.objects.len(), collector.asked), (0, 1));
}

#[test]
fn a_cluster_scoped_object_with_a_namespaced_owner_is_kept() {
    let mut world = family(&[("a", &[])]);
    let owner = to(&world, APPLE, "n1", "a", true);
    world.create(CEDAR, "", "c", vec![owner], false);
    let mut collector = settled_collector(&mut world);
    world.delete(&apple("a"), Background);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["c"]);
    assert_eq!(collector.asked, 0);
}

#[test]
fn references_are_updated_when_a_kind_becomes_cluster_scoped() {
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
    while collector.process_item(&mut world, 0) {}
    assert_eq!((names(&world), collector.asked), (vec!["a", "c"], 0));
    collector.graph.kinds.set_resource(cedar, resource.clone());
    collector.graph.apply_served(cedar);
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
fn an_object_missing_in_a_list_gets_a_get_only_if_it_has_dependents() {
    let mut world = family(&[("a", &[]), ("b", &["a"]), ("lone", &[])]);
    let mut collector = settled_collector(&mut world);
    world.delete(&apple("a"), Background);
    world.delete(&apple("lone"), Background);
    collector.list(&mut world, 0);
    assert_eq!(collector.asked, 0);
    collector.settle(&mut world);
    assert_eq!((names(&world), collector.asked), (vec![], 1));
}

#[test]
fn an_unresolved_owner_gets_a_get_once_its_kind_is_served() {
    let mut world = World::default();
    world.create(APPLE, "n1", "a", vec![absent_owner(BIRCH)], false);
    let mut collector = Collector::new();
    let birch = collector.graph.kinds.id("", BIRCH).unwrap();
    let resource = collector.graph.kinds.resource(birch).cloned();
    collector.graph.kinds.set_resource(birch, None);
    collector.settle(&mut world);
    assert_eq!(names(&world), ["a"]);
    collector.graph.kinds.set_resource(birch, resource);
    collector.graph.apply_served(birch);
    collector.settle(&mut world);
    assert_eq!((names(&world), collector.asked), (vec![], 1));
}

#[test]
fn objects_deleted_together_between_two_lists_leave_no_nodes() {
    let mut world = family(&[("a", &[]), ("b", &["a"]), ("c", &["b"])]);
    let mut collector = settled_collector(&mut world);
    assert_eq!(collector.graph.len(), (3, 0));
    world.objects.clear();
    collector.list(&mut world, 0);
    collector.settle(&mut world);
    assert_eq!(collector.graph.len(), (0, 0));
}
