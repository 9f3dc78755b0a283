//! Objects as people name them.

use std::{fmt, str::FromStr};

use crate::model::pod::PodRef;

const SYNTAX: &str = "must be a UID, NAMESPACE/POD, or KIND[.GROUP]/[NAMESPACE/]NAME such as ReplicaSet.apps/default/web or Namespace/old";

/// Names an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectName {
    /// By its UID.
    Uid(String),
    /// By where it is.
    Named {
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
    /// Whether the kind is that of pods.
    pub fn is_of_pods(&self) -> bool {
        let Self::Named { kind, group: None, .. } = self else {
            return false;
        };
        ["pod", "pods", "po"].contains(&&*kind.to_ascii_lowercase())
    }

    /// Namespace and name of the pod that may be meant: `Pod/shop/web`, or `shop/web` as other verbs name it.
    pub fn pod(&self) -> Option<(&str, &str)> {
        match self {
            Self::Named {
                namespace: Some(namespace),
                name,
                ..
            } if self.is_of_pods() => Some((namespace, name)),
            Self::Named {
                kind,
                group: None,
                namespace: None,
                name,
            } if !self.is_of_pods() => Some((kind, name)),
            _ => None,
        }
    }

    /// Whether this pod is meant.
    pub fn names(&self, pod: &PodRef) -> bool {
        match (self, self.pod()) {
            (Self::Uid(uid), _) => pod.uid.as_str() == uid,
            (_, Some(named)) => (&*pod.namespace, &*pod.name) == named,
            (_, None) => false,
        }
    }
}

impl FromStr for ObjectName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<&str> = text.split('/').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err(SYNTAX);
        }
        let (kind, namespace, name) = match parts.as_slice() {
            [uid] => return Ok(Self::Uid((*uid).to_owned())),
            [kind, name] => (*kind, None, *name),
            [kind, namespace, name] => (*kind, Some((*namespace).to_owned()), *name),
            _ => return Err(SYNTAX),
        };
        let (kind, group) = match kind.split_once('.') {
            Some((kind, group)) if !kind.is_empty() && !group.is_empty() => (kind, Some(group.to_owned())),
            Some(_) => return Err(SYNTAX),
            None => (kind, None),
        };
        Ok(Self::Named {
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
            Self::Named {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_uid_or_a_kind_and_a_name() {
        for name in [
            "a",
            "Pod/web",
            "Pod/shop/web",
            "deployments.apps/shop/web",
            "Thing.a.example/x",
        ] {
            assert_eq!(name.parse::<ObjectName>().unwrap().to_string(), name);
        }
        for (name, pod) in [
            ("shop/web", Some(("shop", "web"))),
            ("Pod/shop/web", Some(("shop", "web"))),
            ("po/web", None),
            ("pods.metrics/shop/web", None),
            ("deploy/shop/web", None),
            ("0b9a8230", None),
        ] {
            assert_eq!(name.parse::<ObjectName>().unwrap().pod(), pod, "{name}");
        }
        for name in ["", "/", "Pod/", "/web", "a/b/c/d", ".apps/web", "Pod./web", "Pod//web"] {
            assert!(name.parse::<ObjectName>().is_err(), "{name}");
        }
    }
}
