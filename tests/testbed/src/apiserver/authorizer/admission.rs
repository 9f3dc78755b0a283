//! Admission of a node's writes: its own Node, the pods bound to it, its own Lease.

use serde_json::{Map, Value};

use crate::apiserver::error::ApiError;
use crate::apiserver::identity::User;
use crate::apiserver::kinds::{self, Kind};
use crate::apiserver::object;
use crate::apiserver::rules::update::{CLAIM_STATUSES, Part};
use crate::apiserver::store::Store;

const MIRROR: &str = "kubernetes.io/config.mirror";
const LEASES: &str = "kube-node-lease";

/// Labels under `kubernetes.io` that a node may set on itself.
const OWN_LABELS: [&str; 8] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Whether `user` may store this new object.
pub fn create(store: &Store, user: &User, kind: &'static Kind, new: &Value) -> Result<(), ApiError> {
    let User::Node(node) = user else { return Ok(()) };
    let refuse = |why: String| Err(ApiError::forbidden(kind, object::name(new), &why));
    match kind.kind {
        "Pod" => mirror_pod(store, node, new).or_else(refuse),
        "Node" if object::name(new) != node => refuse(format!(
            "node \"{node}\" is not allowed to modify node \"{}\"",
            object::name(new)
        )),
        "Node" => labels(node, None, new).or_else(refuse),
        "Lease" if object::namespace(new) != LEASES || object::name(new) != node => {
            refuse("can only access node lease with the same name as the requesting node".to_owned())
        }
        _ => Ok(()),
    }
}

/// Whether `user` may change `old` into `new`.
pub fn update(user: &User, kind: &'static Kind, part: Part, old: &Value, new: &Value) -> Result<(), ApiError> {
    let User::Node(node) = user else { return Ok(()) };
    let name = object::name(old);
    let refuse = |why: String| Err(ApiError::forbidden(kind, name, &why));
    match kind.kind {
        "Pod" if object::node_name(old) != node => refuse(format!(
            "node \"{node}\" can only update pod status for pods with spec.nodeName set to itself"
        )),
        "Pod" if old["metadata"].get("labels") != new["metadata"].get("labels") => {
            refuse(format!("node \"{node}\" cannot update labels through pod status"))
        }
        "Pod"
            if CLAIM_STATUSES
                .iter()
                .any(|field| old["status"].get(field) != new["status"].get(field)) =>
        {
            refuse(format!("node \"{node}\" cannot update resource claim statuses"))
        }
        "Node" if name != node => refuse(format!("node \"{node}\" is not allowed to modify node \"{name}\"")),
        "Node" if part == Part::Main && old["spec"].get("taints") != new["spec"].get("taints") => {
            refuse(format!("node \"{node}\" is not allowed to modify taints"))
        }
        "Node" if old["metadata"].get("ownerReferences") != new["metadata"].get("ownerReferences") => {
            refuse(format!("node \"{node}\" is not allowed to modify ownerReferences"))
        }
        "Node" => labels(node, Some(old), new).or_else(refuse),
        _ => Ok(()),
    }
}

/// Whether `user` may delete this object.
pub fn delete(user: &User, kind: &'static Kind, old: &Value) -> Result<(), ApiError> {
    let User::Node(node) = user else { return Ok(()) };
    if kind.kind == "Pod" && object::node_name(old) != node {
        let why = format!("node \"{node}\" can only delete pods with spec.nodeName set to itself");
        return Err(ApiError::forbidden(kind, object::name(old), &why));
    }
    Ok(())
}

fn mirror_pod(store: &Store, node: &str, pod: &Value) -> Result<(), String> {
    if pod["metadata"]["annotations"].get(MIRROR).is_none() {
        return Err(format!(
            "pod does not have \"{MIRROR}\" annotation, node \"{node}\" can only create mirror pods"
        ));
    }
    if object::node_name(pod) != node {
        return Err(format!(
            "node \"{node}\" can only create pods with spec.nodeName set to itself"
        ));
    }
    let owners = pod["metadata"]["ownerReferences"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let [owner] = owners else {
        return Err(format!(
            "node \"{node}\" can only create pods with an owner reference set to itself"
        ));
    };
    let stored = kinds::find("", "v1", "nodes").and_then(|nodes| store.get(nodes, node));
    let uid = stored
        .map(|node| object::uid(&node.value()).to_owned())
        .unwrap_or_default();
    let right = owner["apiVersion"] == "v1"
        && owner["kind"] == "Node"
        && owner["name"] == node
        && owner["uid"] == uid
        && owner["controller"] == true
        && owner["blockOwnerDeletion"] != true;
    if right {
        Ok(())
    } else {
        Err(format!(
            "node \"{node}\" can only create pods with an owner reference set to itself"
        ))
    }
}

fn labels(node: &str, old: Option<&Value>, new: &Value) -> Result<(), String> {
    let none = Map::new();
    let of = |object: &Value| object.pointer("/metadata/labels").and_then(Value::as_object).cloned();
    let old = old.and_then(of).unwrap_or_default();
    let new = of(new).unwrap_or(none);
    let changed = old
        .keys()
        .chain(new.keys())
        .filter(|label| old.get(*label) != new.get(*label));
    let forbidden: Vec<&str> = changed.map(String::as_str).filter(|label| is_reserved(label)).collect();
    if forbidden.is_empty() {
        return Ok(());
    }
    Err(format!(
        "node \"{node}\" is not allowed to modify labels: {}",
        forbidden.join(", ")
    ))
}

fn is_reserved(label: &str) -> bool {
    let domain = label.split_once('/').map_or("", |(domain, _)| domain);
    let within = |suffix: &str| domain == suffix || domain.ends_with(&format!(".{suffix}"));
    let free = within("kubelet.kubernetes.io") || domain == "node.kubernetes.io";
    (within("kubernetes.io") || within("k8s.io")) && !free && !OWN_LABELS.contains(&label)
}
