//! The smallest strategic merge patch that gives the live object the wanted status.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodIP, PodStatus};
use serde_json::{Map, Value, json, value::RawValue};

use super::merge::{Merged, merge};
use crate::model::pod::RawStatuses;

/// Body of a `PATCH pods/status` (strategic merge), or `None` if no own field differs.
///
/// `uid` is the pod that the status was generated for. It is the precondition, never the UID of the live object. An object with
/// another UID needs no patch. `raw` has the fields that this agent does not know.
pub fn patch(api: &Pod, raw: &RawStatuses, uid: &str, wanted: &PodStatus) -> Option<Value> {
    if uid.is_empty() || api.metadata.uid.as_deref() != Some(uid) {
        return None;
    }
    let none = PodStatus::default();
    let live = api.status.as_ref().unwrap_or(&none);
    let Merged {
        decision,
        conditions,
        regular,
        init,
        ephemeral,
        observed_generation,
    } = merge(api, wanted);
    let mut status = Map::new();

    set(&mut status, "phase", live.phase.as_deref(), decision.phase.as_deref());
    set_or_clear(
        &mut status,
        "reason",
        live.reason.as_deref(),
        decision.reason.as_deref(),
    );
    set_or_clear(
        &mut status,
        "message",
        live.message.as_deref(),
        decision.message.as_deref(),
    );
    set(
        &mut status,
        "observedGeneration",
        live.observed_generation,
        observed_generation,
    );
    set(
        &mut status,
        "podIP",
        live.pod_ip.as_deref(),
        wanted.pod_ip.as_deref().filter(|ip| !ip.is_empty()),
    );
    if live.start_time.is_none() {
        set(&mut status, "startTime", Value::Null, json!(wanted.start_time));
    }
    set_pod_ips(&mut status, live.pod_ips.as_deref(), wanted.pod_ips.as_deref());
    set_conditions(&mut status, live.conditions.as_deref(), &conditions);
    set_entries(
        &mut status,
        "containerStatuses",
        live.container_statuses.as_deref(),
        raw.regular.as_deref(),
        &regular,
    );
    set_entries(
        &mut status,
        "initContainerStatuses",
        live.init_container_statuses.as_deref(),
        raw.init.as_deref(),
        &init,
    );
    set_entries(
        &mut status,
        "ephemeralContainerStatuses",
        live.ephemeral_container_statuses.as_deref(),
        raw.ephemeral.as_deref(),
        &ephemeral,
    );

    (!status.is_empty()).then(|| json!({ "metadata": { "uid": uid }, "status": status }))
}

/// A field that is never removed.
fn set(status: &mut Map<String, Value>, field: &str, live: impl Into<Value>, new: impl Into<Value>) {
    let (live, new) = (live.into(), new.into());
    if !new.is_null() && live != new {
        status.insert(field.into(), new);
    }
}

/// A text that is removed if it is not wanted. An empty one equals none.
fn set_or_clear(status: &mut Map<String, Value>, field: &str, live: Option<&str>, new: Option<&str>) {
    let (live, new) = (live.unwrap_or_default(), new.unwrap_or_default());
    if live != new {
        let value = if new.is_empty() { Value::Null } else { json!(new) };
        status.insert(field.into(), value);
    }
}

/// A list that the server merges by `ip`: removed entries must be named.
fn set_pod_ips(status: &mut Map<String, Value>, live: Option<&[PodIP]>, new: Option<&[PodIP]>) {
    let distinct = |list: Option<&[PodIP]>| {
        let mut ips: Vec<String> = Vec::new();
        for entry in list.unwrap_or_default() {
            if !ips.contains(&entry.ip) {
                ips.push(entry.ip.clone());
            }
        }
        ips
    };
    let (live, mut new) = (distinct(live), distinct(new));
    new.retain(|ip| !ip.is_empty());
    if new.is_empty() || live == new {
        return;
    }
    let added = new.iter().filter(|ip| !live.contains(ip)).map(|ip| json!({ "ip": ip }));
    let removed = live
        .iter()
        .filter(|ip| !new.contains(ip))
        .map(|ip| json!({ "$patch": "delete", "ip": ip }));
    let list: Vec<Value> = added.chain(removed).collect();
    let order: Vec<Value> = new.iter().map(|ip| json!({ "ip": ip })).collect();
    status.insert("$setElementOrder/podIPs".into(), Value::Array(order));
    if !list.is_empty() {
        status.insert("podIPs".into(), Value::Array(list));
    }
}

/// A list that the server merges by `type`: only own conditions, of these only differences, and no removal.
fn set_conditions(status: &mut Map<String, Value>, live: Option<&[PodCondition]>, ours: &[PodCondition]) {
    let live = live.unwrap_or_default();
    let changes: Vec<Value> = ours
        .iter()
        .filter_map(|condition| {
            condition_change(live.iter().find(|old| old.type_ == condition.type_), condition).map(Value::Object)
        })
        .collect();
    if changes.is_empty() {
        return;
    }
    // Foreign conditions keep their positions. Own ones follow in their order, the same as in the list of changes.
    let is_ours = |kind: &str| ours.iter().any(|condition| condition.type_ == kind);
    let others = live.iter().map(|old| old.type_.as_str()).filter(|kind| !is_ours(kind));
    let mut seen = HashSet::new();
    let all = others.chain(ours.iter().map(|condition| condition.type_.as_str()));
    let order: Vec<Value> = all
        .filter(|kind| seen.insert(*kind))
        .map(|kind| json!({ "type": kind }))
        .collect();
    status.insert("$setElementOrder/conditions".into(), Value::Array(order));
    status.insert("conditions".into(), Value::Array(changes));
}

/// The fields of one condition that differ, with its merge key.
fn condition_change(old: Option<&PodCondition>, new: &PodCondition) -> Option<Map<String, Value>> {
    let new = fields(new);
    let old = old.map(fields).unwrap_or_default();
    let mut change: Map<String, Value> = new
        .iter()
        .filter(|(field, value)| old.get(*field) != Some(value))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    for field in old.keys().filter(|field| !new.contains_key(*field)) {
        change.insert(field.clone(), Value::Null);
    }
    if change.is_empty() {
        return None;
    }
    change.insert("type".into(), new.get("type").cloned().unwrap_or_default());
    Some(change)
}

/// A list that the server replaces as a whole: unknown fields of an entry, and unreadable entries, are sent back unchanged.
fn set_entries(
    status: &mut Map<String, Value>,
    field: &str,
    live: Option<&[ContainerStatus]>,
    raw: Option<&RawValue>,
    merged: &[ContainerStatus],
) {
    let comparable = |list: &[ContainerStatus]| list.iter().map(fields).collect::<Vec<_>>();
    let (live, mut new) = (comparable(live.unwrap_or_default()), comparable(merged));
    if live == new {
        return;
    }
    let raw: Vec<Map<String, Value>> = raw
        .and_then(|raw| serde_json::from_str(raw.get()).ok())
        .unwrap_or_default();
    let nothing = Map::new();
    let (shown, live) = (by_name(&raw), by_name(&live));
    for entry in &mut new {
        let name = entry.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        if let Some(shown) = shown.get(&*name) {
            keep_unknown_fields(entry, live.get(&*name).copied().unwrap_or(&nothing), shown);
        }
    }
    new.extend(
        raw.into_iter()
            .filter(|entry| !entry.get("name").is_some_and(Value::is_string)),
    );
    let value = if new.is_empty() { Value::Null } else { json!(new) };
    status.insert(field.into(), value);
}

/// Entries by name, the first one of each name.
fn by_name(entries: &[Map<String, Value>]) -> HashMap<&str, &Map<String, Value>> {
    let named = entries
        .iter()
        .rev()
        .filter_map(|entry| Some((entry.get("name")?.as_str()?, entry)));
    named.collect()
}

/// Copies to `entry` each field of `shown`, the server's JSON, that is unknown or that `entry` has unchanged from `live`.
fn keep_unknown_fields(entry: &mut Map<String, Value>, live: &Map<String, Value>, shown: &Map<String, Value>) {
    for (field, value) in shown {
        if live.get(field) == entry.get(field) {
            entry.insert(field.clone(), value.clone());
        }
    }
}

/// The fields of an object, without empty ones: the server prints `"lastState": {}` and may omit `""`.
fn fields(object: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(object) {
        Ok(Value::Object(map)) => map.into_iter().filter(|(field, value)| is_kept(field, value)).collect(),
        Ok(_) | Err(_) => Map::new(),
    }
}

/// Required fields are kept even if they are empty.
fn is_kept(field: &str, value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty() || matches!(field, "name" | "image" | "imageID" | "type" | "status"),
        Value::Object(map) => !map.is_empty() || !matches!(field, "state" | "lastState"),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => true,
    }
}
