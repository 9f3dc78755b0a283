//! Names of pods and objects on the command line, as kubectl has them.

use std::fmt;

use clap::Args;

use crate::object_name::ObjectName;

/// Namespace of a name without one, as in kubectl.
const DEFAULT_NAMESPACE: &str = "default";

/// A pod.
#[derive(Debug, Clone, Args)]
pub struct PodArg {
    /// The pod: its name, NAMESPACE/NAME, or its UID.
    #[arg(value_name = "POD")]
    pod: String,
    /// Namespace of the pod [default: default].
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

/// A pod that may be missing.
#[derive(Debug, Clone, Args)]
pub struct OptionalPodArg {
    /// The pod: its name, NAMESPACE/NAME, or its UID [default: all].
    #[arg(value_name = "POD")]
    pod: Option<String>,
    /// Namespace of the pod [default: default].
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

/// An object in the cluster.
#[derive(Debug, Clone, Args)]
pub struct ObjectArg {
    /// Its kind, the plural or a short name, with or without group: Deployment.apps, deployments, deploy; or the UID
    /// alone.
    #[arg(value_name = "KIND")]
    kind: String,
    /// Its name, or NAMESPACE/NAME.
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Namespace of the object [default: any].
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

/// An object in the cluster that may be missing.
#[derive(Debug, Clone, Args)]
pub struct OptionalObjectArg {
    /// Its kind, as in `gc why` [default: all active objects].
    #[arg(value_name = "KIND")]
    kind: Option<String>,
    /// Its name, or NAMESPACE/NAME.
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Namespace of the object [default: any].
    #[arg(short, long, value_name = "NAMESPACE", requires = "kind")]
    namespace: Option<String>,
}

/// The name of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A pod by its name or UID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodId {
    /// By its name.
    Name(PodName),
    /// By its UID.
    Uid(String),
}

// === impl PodArg ===

impl PodArg {
    /// The pod.
    ///
    /// # Errors
    /// When it has two namespaces, or is no legal name.
    pub fn id(&self) -> Result<PodId, String> {
        parse_pod(&self.pod, self.namespace.as_deref(), DEFAULT_NAMESPACE)
    }
}

// === impl OptionalPodArg ===

impl OptionalPodArg {
    /// The pod, if there is one.
    ///
    /// # Errors
    /// As [`PodArg::id`], and for a namespace without a pod.
    pub fn id(&self) -> Result<Option<PodId>, String> {
        match (&self.pod, &self.namespace) {
            (Some(pod), namespace) => parse_pod(pod, namespace.as_deref(), DEFAULT_NAMESPACE).map(Some),
            (None, Some(_)) => Err("--namespace needs a POD".to_owned()),
            (None, None) => Ok(None),
        }
    }

    /// The pod, or the namespace that a list is limited to.
    ///
    /// # Errors
    /// As [`PodArg::id`].
    pub fn id_or_namespace(&self) -> Result<Result<PodId, Option<String>>, String> {
        match &self.pod {
            Some(pod) => parse_pod(pod, self.namespace.as_deref(), DEFAULT_NAMESPACE).map(Ok),
            None => Ok(Err(self.namespace.clone())),
        }
    }
}

// === impl OptionalObjectArg ===

impl OptionalObjectArg {
    /// The object, if there is one.
    ///
    /// # Errors
    /// As [`ObjectArg::name`].
    pub fn name(&self) -> Result<Option<ObjectName>, String> {
        let Self { kind, name, namespace } = self.clone();
        kind.map(|kind| ObjectArg { kind, name, namespace }.name()).transpose()
    }
}

// === impl ObjectArg ===

impl ObjectArg {
    /// The object.
    ///
    /// # Errors
    /// When it has no name or two namespaces.
    pub fn name(&self) -> Result<ObjectName, String> {
        let Self { kind, name, namespace } = self;
        let name = match name {
            Some(name) => name,
            None if is_uid(kind) => return Ok(ObjectName::Uid(kind.clone())),
            None => return Err(format!("{kind} has no NAME: name KIND and NAME, or a UID")),
        };
        let text = format!("{kind}/{name}");
        let parsed: ObjectName = text.parse().map_err(|syntax| format!("the object {syntax}"))?;
        match parsed {
            ObjectName::Named {
                kind,
                group,
                namespace: own,
                name,
            } => Ok(ObjectName::Named {
                kind,
                group,
                namespace: one_namespace(own.as_deref(), namespace.as_deref())?,
                name,
            }),
            uid @ ObjectName::Uid(_) => Ok(uid),
        }
    }
}

/// The pod by its name; `default` is the namespace of a name without one.
pub(super) fn pod_name(text: &str, flag: Option<&str>, default: &str) -> Result<PodName, String> {
    match parse_pod(text, flag, default)? {
        PodId::Name(name) => Ok(name),
        PodId::Uid(uid) => Err(format!("{uid} is a UID, which its node knows: name the pod")),
    }
}

fn parse_pod(text: &str, flag: Option<&str>, default: &str) -> Result<PodId, String> {
    let (namespace, name) = match text.split_once('/') {
        Some((kind @ ("pod" | "pods" | "po"), name)) if flag != Some(kind) => {
            return Err(format!(
                "{kind}/ is not needed: name the pod as {name}, with -n NAMESPACE, or as NAMESPACE/{name}"
            ));
        }
        Some((namespace, name)) => (Some(namespace), name),
        None if flag.is_none() && is_uid(text) => return Ok(PodId::Uid(text.to_owned())),
        None => (None, text),
    };
    let namespace = one_namespace(namespace, flag)?.unwrap_or_else(|| default.to_owned());
    if !is_legal(&namespace) || !is_legal(name) {
        return Err(format!(
            "{text:?} is no name of a pod: it must be NAME, NAMESPACE/NAME, such as default/web-0, or a UID"
        ));
    }
    Ok(PodId::Name(PodName {
        namespace,
        name: name.to_owned(),
    }))
}

/// The namespace of the name or of the flag.
fn one_namespace(named: Option<&str>, flag: Option<&str>) -> Result<Option<String>, String> {
    match (named, flag) {
        (Some(named), Some(flag)) if named != flag => Err(format!(
            "two namespaces: --namespace {flag} and {named} in the name; name one of them"
        )),
        (named, flag) => Ok(named.or(flag).map(str::to_owned)),
    }
}

fn is_legal(part: &str) -> bool {
    !matches!(part, "" | "." | "..") && part.bytes().all(|it| it.is_ascii_alphanumeric() || b"-.".contains(&it))
}

/// Whether this is a UUID, which the API server gives as UID.
fn is_uid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    let is_group =
        |(group, length): (&&str, usize)| group.len() == length && group.bytes().all(|it| it.is_ascii_hexdigit());
    groups.len() == 5 && groups.iter().zip([8, 4, 4, 4, 12]).all(is_group)
}

// === impl PodName ===

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// === impl PodId ===

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Uid(uid) => f.write_str(uid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0b9a8230-aace-4480-91d0-db24e46eb609";

    #[test]
    fn pod_is_named_as_in_kubectl() {
        for (text, flag, shown) in [
            ("web-0", None, Ok("default/web-0")),
            ("web-0", Some("shop"), Ok("shop/web-0")),
            ("shop/web-0", None, Ok("shop/web-0")),
            ("shop/web-0", Some("shop"), Ok("shop/web-0")),
            (UID, None, Ok(UID)),
            (UID, Some("shop"), Ok("shop/0b9a8230-aace-4480-91d0-db24e46eb609")),
            ("shop/web-0", Some("other"), Err("two namespaces")),
            ("pod/web-0", None, Err("pod/ is not needed: name the pod as web-0")),
            ("pod/web-0", Some("pod"), Ok("pod/web-0")),
            ("a/b/c", None, Err("NAMESPACE/NAME")),
            ("/web-0", None, Err("NAMESPACE/NAME")),
            ("", None, Err("NAMESPACE/NAME")),
            ("..", None, Err("NAMESPACE/NAME")),
            ("web 0", None, Err("NAMESPACE/NAME")),
        ] {
            match (parse_pod(text, flag, DEFAULT_NAMESPACE), shown) {
                (Ok(pod), Ok(shown)) => assert_eq!(pod.to_string(), shown, "{text} {flag:?}"),
                (Err(error), Err(words)) => assert!(error.contains(words), "{text} {flag:?}: {error}"),
                (parsed, _) => panic!("{text} {flag:?}: {parsed:?}"),
            }
        }
    }

    #[test]
    fn object_is_named_by_one_or_two_arguments() {
        let named = |kind: &str, name: Option<&str>, namespace: Option<&str>| {
            let arg = ObjectArg {
                kind: kind.to_owned(),
                name: name.map(str::to_owned),
                namespace: namespace.map(str::to_owned),
            };
            arg.name().map(|name| name.to_string())
        };
        for (kind, name, namespace, shown) in [
            ("deploy", Some("web"), Some("shop"), "deploy/shop/web"),
            ("Deployment.apps", Some("shop/web"), None, "Deployment.apps/shop/web"),
            ("Namespace", Some("old"), None, "Namespace/old"),
            (UID, None, None, UID),
        ] {
            assert_eq!(named(kind, name, namespace).as_deref(), Ok(shown));
        }
        for (kind, name, namespace, words) in [
            ("deploy", None, None, "has no NAME"),
            ("deploy/web", None, None, "has no NAME"),
            ("deploy", Some("a/web"), Some("b"), "two namespaces"),
            ("deploy", Some(""), None, "must be"),
        ] {
            let error = named(kind, name, namespace).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
