//! Effects of writes to objects that determine what is served: definitions of custom kinds, and APIServices. What
//! controllers of a real server do about them is done at once here.

use std::sync::Arc;

use serde_json::{Value, json};

use super::kinds::{self, Kind, custom};
use super::object::{self, text};
use super::store::Store;
use super::stored::Stored;
use super::writes::{self, Writer};

/// Keeps a definition until all its instances are deleted.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Whether objects of this kind define others.
pub fn is_definition(kind: &Kind) -> bool {
    kind.kind == "CustomResourceDefinition" && !kind.custom
}

/// Whether an object of this kind names the server of a group version.
fn is_service(kind: &Kind) -> bool {
    kind.kind == "APIService" && !kind.custom
}

pub fn stored(store: &mut Store, writer: &Writer, kind: &'static Kind, object: &Arc<Stored>) {
    if is_service(kind) {
        let service = object.value();
        let elsewhere = service.pointer("/spec/service").is_some_and(Value::is_object);
        // There is no other server to be reached.
        set_availability(store, &service, elsewhere);
    } else if is_definition(kind) {
        let definition = object.value();
        if object::deletion_time(&definition).is_some() {
            serve(store, &definition);
            delete_instances(store, writer, &definition);
        } else if definition.pointer("/status/acceptedNames/kind") == definition.pointer("/spec/names/kind") {
            serve(store, &definition);
        } else {
            // Written once more with its names accepted, it comes back here.
            writes::put(store, writer, kind, object.key(), accepted(definition, writer));
        }
    }
}

/// Handles a deleted object.
pub fn removed(store: &mut Store, writer: &Writer, kind: &'static Kind, object: &Stored) {
    if is_service(kind) {
        set_availability(store, &object.value(), false);
    } else if is_definition(kind) {
        publish(store, &object.value(), &[]);
    } else if kind.custom
        && store.table(kind).is_empty()
        && let Some(definition) = definition_of(store, kind).filter(|it| object::deletion_time(it).is_some())
    {
        remove_cleanup_finalizer(store, writer, &definition);
    }
}

/// Whether instances of `kind` may no longer be created.
pub fn is_ending(store: &Store, kind: &'static Kind) -> bool {
    kind.custom && definition_of(store, kind).is_some_and(|it| object::deletion_time(&it).is_some())
}

/// A definition at the start of its deletion.
pub fn ending(mut definition: Value, writer: &Writer) -> Value {
    let metadata = object::metadata_mut(&mut definition);
    metadata.insert("deletionTimestamp".to_owned(), object::stamp(writer.now).into());
    let mut finalizers: Vec<String> = object::finalizers(&definition).into_iter().map(str::to_owned).collect();
    finalizers.push(CLEANUP.to_owned());
    object::set_finalizers(&mut definition, &finalizers);
    let why = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    object::set_condition(
        &mut definition,
        condition("Terminating", "InstanceDeletionPending", why, writer),
    );
    definition
}

fn accepted(mut definition: Value, writer: &Writer) -> Value {
    let names = definition["spec"]["names"].clone();
    let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    let stored: Vec<Value> = versions
        .filter(|version| version["storage"] == true)
        .map(|version| version["name"].clone())
        .collect();
    let status = object::child_mut(&mut definition, "status");
    status.insert("acceptedNames".to_owned(), names);
    status.insert("storedVersions".to_owned(), stored.into());
    for (name, reason, message) in [
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        (
            "Established",
            "InitialNamesAccepted",
            "the initial names have been accepted",
        ),
    ] {
        object::set_condition(&mut definition, condition(name, reason, message, writer));
    }
    definition
}

fn condition(name: &str, reason: &str, message: &str, writer: &Writer) -> Value {
    let at = object::stamp(writer.now);
    json!({ "type": name, "status": "True", "lastTransitionTime": at, "reason": reason, "message": message })
}

fn set_availability(store: &mut Store, service: &Value, away: bool) {
    store
        .served
        .set_unavailable(text(service, "/spec/group"), text(service, "/spec/version"), away);
}

/// Serves the versions of a definition that are marked as served. If they have changed, all watches end.
fn serve(store: &mut Store, definition: &Value) {
    let made = custom::made_by(definition);
    let served: Vec<&'static Kind> = made
        .iter()
        .filter(|(_, served)| *served)
        .map(|(kind, _)| *kind)
        .collect();
    publish(store, definition, &served);
}

fn publish(store: &mut Store, definition: &Value, kinds: &[&'static Kind]) {
    let (group, resource) = (text(definition, "/spec/group"), text(definition, "/spec/names/plural"));
    if store.served.define(group, resource, kinds)
        && let Some(kind) = any_of(definition)
    {
        store.restart(kind);
    }
}

/// One of the kinds of a definition, served or not: they share one table.
fn any_of(definition: &Value) -> Option<&'static Kind> {
    custom::made_by(definition).first().map(|(kind, _)| *kind)
}

fn definition_of(store: &Store, kind: &Kind) -> Option<Value> {
    let found = store.get(definitions()?, &kind.group_resource())?;
    Some(found.value())
}

fn definitions() -> Option<&'static Kind> {
    kinds::find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
}

fn delete_instances(store: &mut Store, writer: &Writer, definition: &Value) {
    let Some(kind) = any_of(definition).filter(|kind| !store.table(kind).is_empty()) else {
        return remove_cleanup_finalizer(store, writer, definition);
    };
    let instances: Vec<Arc<Stored>> = store.table(kind).range("", "").cloned().collect();
    for instance in &instances {
        // The deletion of the last instance removes the finalizer; an instance with finalizers stays until they are
        // removed.
        writes::end(store, writer, kind, instance);
    }
}

/// Removes the finalizer that waited for the instances.
fn remove_cleanup_finalizer(store: &mut Store, writer: &Writer, definition: &Value) {
    let Some(definitions) = definitions() else {
        return;
    };
    let mut rest = object::finalizers(definition);
    if !rest.contains(&CLEANUP) {
        return;
    }
    rest.retain(|name| *name != CLEANUP);
    let name = object::name(definition);
    if rest.is_empty() {
        writes::remove(store, writer, definitions, name);
    } else {
        let rest: Vec<String> = rest.into_iter().map(str::to_owned).collect();
        let mut next = definition.clone();
        object::set_finalizers(&mut next, &rest);
        writes::put(store, writer, definitions, name, next);
    }
}
