//! Objects as people name them.

use std::{fmt, str::FromStr};

use crate::gc::{
    graph::{Graph, NodeId, State},
    names::{clipped, kind, kind_of, visible},
};

/// As many are named where a name fits several.
const NAMED: usize = 5;
const HOW: &str =
    "must be a UID, or KIND[.GROUP]/[NAMESPACE/]NAME such as ReplicaSet.apps/default/web or Namespace/old";

/// Names an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectName {
    /// By its UID.
    Uid(String),
    /// By where it is.
    Place {
        /// Its kind, or the plural of its resource, in any case.
        kind: String,
        /// Its group; any group without.
        group: Option<String>,
        /// Its namespace; any, or none, without.
        namespace: Option<String>,
        /// Its name.
        name: String,
    },
}

// === impl ObjectName ===

impl ObjectName {
    /// The one that it names; what to do if there is none, or more than one.
    pub(super) fn find(&self, graph: &Graph) -> Result<NodeId, String> {
        let mut found: Vec<NodeId> = match self {
            Self::Uid(uid) => graph.with_uid(uid),
            Self::Place { .. } => graph.nodes().filter(|&id| self.fits(graph, id)).collect(),
        };
        // One that is there goes before what others only say is there.
        let there = |id: &NodeId| graph.node(*id).state.has(State::OBSERVED);
        if found.iter().any(there) {
            found.retain(there);
        }
        match (found.as_slice(), self) {
            ([], _) => Err(self.nothing(graph)),
            ([one], _) | ([one, ..], Self::Uid(_)) => Ok(*one),
            (several, Self::Place { .. }) => Err(ambiguous(graph, several)),
        }
    }

    fn fits(&self, graph: &Graph, id: NodeId) -> bool {
        let Self::Place {
            kind,
            group,
            namespace,
            name,
        } = self
        else {
            return false;
        };
        let node = graph.node(id);
        if *node.name != **name {
            return false;
        }
        let kinds = &graph.kinds;
        let plural = kinds.resource(node.kind).map(|resource| &*resource.plural);
        let is_kind = kinds.kind(node.kind).eq_ignore_ascii_case(kind) || plural == Some(&kind.to_ascii_lowercase());
        is_kind
            && group.as_deref().is_none_or(|group| group == kinds.group(node.kind))
            && namespace
                .as_deref()
                .is_none_or(|it| it == graph.namespace(node.namespace))
    }

    fn nothing(&self, graph: &Graph) -> String {
        match self {
            Self::Uid(uid) => match graph.alone(uid) {
                Some(id) => format!(
                    "the collector knows it: a {} that has no owner and no dependent, and is not being deleted; nothing \
                     of the collector's holds it or is about to delete it",
                    kind(graph.kinds.group(id), graph.kinds.kind(id))
                ),
                None => format!(
                    "the collector knows no object with UID {:?}: it is gone, is of a kind that is not watched, or was \
                     never there",
                    clipped(uid)
                ),
            },
            Self::Place { .. } => format!(
                "the collector knows {self} neither as an owner nor as a dependent, and does not see it being deleted; of \
                 what is none of these it keeps no names. If it is there, nothing of the collector's holds it: see its \
                 finalizers with kubectl, or ask with its UID"
            ),
        }
    }
}

fn ambiguous(graph: &Graph, several: &[NodeId]) -> String {
    let one = |&id: &NodeId| {
        let node = graph.node(id);
        let namespace = match graph.namespace(node.namespace) {
            "" => "no namespace".to_owned(),
            namespace => format!("namespace {namespace}"),
        };
        visible(&clipped(&format!(
            "{} in {namespace} (uid {})",
            kind_of(graph, id),
            graph.uid(id)
        )))
    };
    let shown: Vec<String> = several.iter().take(NAMED).map(one).collect();
    let more = several.len() - shown.len();
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!("it may be any of these, ask with a UID: {}{more}", shown.join(", "))
}

impl FromStr for ObjectName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<&str> = text.split('/').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err(HOW);
        }
        let (kind, namespace, name) = match parts.as_slice() {
            [uid] => return Ok(Self::Uid((*uid).to_owned())),
            [kind, name] => (*kind, None, *name),
            [kind, namespace, name] => (*kind, Some((*namespace).to_owned()), *name),
            _ => return Err(HOW),
        };
        let (kind, group) = match kind.split_once('.') {
            Some((kind, group)) if !kind.is_empty() && !group.is_empty() => (kind, Some(group.to_owned())),
            Some(_) => return Err(HOW),
            None => (kind, None),
        };
        Ok(Self::Place {
            kind: kind.to_owned(),
            group,
            namespace,
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => f.write_str(uid),
            Self::Place {
                kind,
                group,
                namespace,
                name,
            } => {
                f.write_str(kind)?;
                if let Some(group) = group {
                    write!(f, ".{group}")?;
                }
                if let Some(namespace) = namespace {
                    write!(f, "/{namespace}")?;
                }
                write!(f, "/{name}")
            }
        }
    }
}
