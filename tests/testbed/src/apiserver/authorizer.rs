//! Pure: authorization. The administrator may do everything, a node what the agent needs of the rights of its kubelet.

pub mod admission;
mod related;

use super::error::ApiError;
use super::identity::User;
use super::object;
use super::route::Target;
use super::selector::Selector;
use super::store::Store;

/// The namespace of the leases of nodes.
const LEASES: &str = "kube-node-lease";

const NO_RELATION: &str = "no relationship found between node";

/// Whether `user` may do `verb` to `target`; `fields` is the selector of a list or watch.
pub fn authorize(store: &Store, user: &User, verb: &str, target: &Target, fields: &Selector) -> Result<(), ApiError> {
    let why = match user {
        User::Admin | User::Collector => return Ok(()),
        User::Anonymous => String::new(),
        User::Node(node) => match node_may(store, node, verb, target, fields) {
            Ok(()) => return Ok(()),
            Err(why) => why,
        },
    };
    let scope = match target.namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace \"{namespace}\""),
    };
    let colon = if why.is_empty() { "" } else { ": " };
    let message = format!(
        "User \"{}\" cannot {verb} resource \"{}\" in API group \"{}\" {scope}{colon}{why}",
        user.name(),
        target.resource(),
        target.kind.group,
    );
    Err(ApiError::forbidden(target.kind, &target.name, &message))
}

fn node_may(store: &Store, node: &str, verb: &str, target: &Target, fields: &Selector) -> Result<(), String> {
    let allowed = |right: bool| if right { Ok(()) } else { Err(String::new()) };
    match (target.kind.group, target.kind.resource, target.subresource.as_str()) {
        ("", "pods", "") => pods(store, node, verb, target, fields),
        ("", "pods", "status") => allowed(matches!(verb, "update" | "patch")),
        ("" | "events.k8s.io", "events", "") => allowed(matches!(verb, "create" | "update" | "patch")),
        ("coordination.k8s.io", "leases", "") => lease(node, verb, target),
        ("", "nodes", "") if matches!(verb, "list" | "watch") => {
            let own = fields.required("metadata.name") == Some(node);
            if own {
                Ok(())
            } else {
                Err(format!("node '{node}' cannot read all nodes, only its own Node object"))
            }
        }
        ("", "nodes", "") if verb == "get" && target.name != node => Err(format!(
            "node '{node}' cannot read '{}', only its own Node object",
            target.name
        )),
        ("", "nodes", "" | "status") => allowed(matches!(verb, "get" | "create" | "update" | "patch")),
        ("", "persistentvolumes", "") | ("resource.k8s.io", "resourceclaims", "") if verb == "get" => {
            related(store, node, target)
        }
        _ => Err(String::new()),
    }
}

fn pods(store: &Store, node: &str, verb: &str, target: &Target, fields: &Selector) -> Result<(), String> {
    let bound_here = |key: &str| {
        store
            .get(target.kind, key)
            .is_some_and(|pod| object::node_name(&pod.value()) == node)
    };
    match verb {
        "get" if bound_here(&target.key()) => Ok(()),
        "get" => Err(format!("{NO_RELATION} '{node}' and this object")),
        "list" | "watch" => {
            let own = |name: &str| bound_here(&target.kind.key(&target.namespace, name));
            let selected =
                fields.required("spec.nodeName") == Some(node) || fields.required("metadata.name").is_some_and(own);
            if selected {
                Ok(())
            } else {
                Err("can only list/watch pods with spec.nodeName field selector".to_owned())
            }
        }
        "create" | "delete" => Ok(()),
        _ => Err(String::new()),
    }
}

fn lease(node: &str, verb: &str, target: &Target) -> Result<(), String> {
    if !matches!(verb, "get" | "create" | "update" | "patch" | "delete") {
        return Err(String::new());
    }
    if target.namespace != LEASES {
        return Err(format!("can only access leases in the \"{LEASES}\" system namespace"));
    }
    if verb != "create" && target.name != node {
        return Err("can only access node lease with the same name as the requesting node".to_owned());
    }
    Ok(())
}

fn related(store: &Store, node: &str, target: &Target) -> Result<(), String> {
    if related::is_used(store, node, target) {
        Ok(())
    } else {
        Err(format!("{NO_RELATION} '{node}' and this object"))
    }
}
