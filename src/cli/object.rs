//! Names of pods and objects on the command line, as kubectl has them.

use clap::Args;
use uuid::{Uuid, fmt::Hyphenated};

use crate::object_name::ObjectName;

/// Namespace of a name without one, as in kubectl.
pub(super) const DEFAULT_NAMESPACE: &str = "default";

/// A mistake in the arguments that clap cannot find.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

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

/// An object in the cluster.
#[derive(Debug, Clone, Args)]
pub struct ObjectArg {
    /// Its kind, the plural or a short name, with or without group: Deployment.apps, deployments, deploy; or the UID
    /// alone.
    #[arg(value_name = "KIND")]
    kind: Option<String>,
    /// Its name, or NAMESPACE/NAME.
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Namespace of the object [default: any].
    #[arg(short, long, value_name = "NAMESPACE", requires = "kind")]
    namespace: Option<String>,
}

// === impl PodArg ===

impl PodArg {
    /// The pod as `NAMESPACE/NAME`, or its UID.
    ///
    /// # Errors
    /// When it has two namespaces, or is no legal name.
    pub fn id(&self) -> Result<String, UsageError> {
        parse_pod(&self.pod, self.namespace.as_deref(), DEFAULT_NAMESPACE)
    }
}

// === impl ObjectArg ===

impl ObjectArg {
    /// The object, if there is one.
    ///
    /// # Errors
    /// When it has no name or two namespaces.
    pub fn name(&self) -> Result<Option<ObjectName>, UsageError> {
        let Some(kind) = &self.kind else { return Ok(None) };
        let name = match &self.name {
            Some(name) => name,
            None if is_uid(kind) => return Ok(Some(ObjectName::Uid(kind.clone()))),
            None => {
                return Err(UsageError(format!("{kind} has no NAME: name KIND and NAME, or a UID")));
            }
        };
        let mut object: ObjectName = format!("{kind}/{name}")
            .parse()
            .map_err(|syntax| UsageError(format!("the object {syntax}")))?;
        if let ObjectName::Named { namespace, .. } = &mut object {
            *namespace = one_namespace(namespace.as_deref(), self.namespace.as_deref())?;
        }
        Ok(Some(object))
    }

    /// The object.
    ///
    /// # Errors
    /// As [`ObjectArg::name`], and when it is missing.
    pub fn required_name(&self) -> Result<ObjectName, UsageError> {
        self.name()?
            .ok_or_else(|| UsageError("name KIND and NAME, or a UID".to_owned()))
    }
}

/// Namespace and name of the pod `NAME` or `NAMESPACE/NAME`. `flag` is its namespace, `default` that of a name without one.
///
/// # Errors
/// As [`PodArg::id`], and for a UID.
pub fn parse_pod_name(text: &str, flag: Option<&str>, default: &str) -> Result<(String, String), UsageError> {
    let pod = parse_pod(text, flag, default)?;
    let (namespace, name) = pod
        .split_once('/')
        .ok_or_else(|| UsageError(format!("{pod} is a UID, which its node knows: name the pod")))?;
    Ok((namespace.to_owned(), name.to_owned()))
}

/// A pod as [`PodArg::id`] returns it. `flag` is its namespace, `default` that of a name without one.
pub(super) fn parse_pod(text: &str, flag: Option<&str>, default: &str) -> Result<String, UsageError> {
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None if flag.is_none() && is_uid(text) => return Ok(text.to_owned()),
        None => (None, text),
    };
    let namespace = one_namespace(namespace, flag)?.unwrap_or_else(|| default.to_owned());
    if !is_legal(&namespace) || !is_legal(name) {
        return Err(UsageError(format!(
            "{text:?} is no name of a pod: it must be NAME, NAMESPACE/NAME, such as default/web-0, or a UID"
        )));
    }
    Ok(format!("{namespace}/{name}"))
}

/// The namespace of the name or of the flag.
fn one_namespace(named: Option<&str>, flag: Option<&str>) -> Result<Option<String>, UsageError> {
    match (named, flag) {
        (Some(named), Some(flag)) if named != flag => Err(UsageError(format!(
            "two namespaces: --namespace {flag} and {named} in the name; name one of them"
        ))),
        (named, flag) => Ok(named.or(flag).map(str::to_owned)),
    }
}

fn is_legal(part: &str) -> bool {
    !matches!(part, "" | "." | "..") && part.bytes().all(|it| it.is_ascii_alphanumeric() || b"-.".contains(&it))
}

/// Whether this is a UUID, which the API server gives as UID.
fn is_uid(text: &str) -> bool {
    // Other forms of a UUID have other lengths.
    text.len() == Hyphenated::LENGTH && Uuid::try_parse(text).is_ok()
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
            ("a/b/c", None, Err("NAMESPACE/NAME")),
            ("/web-0", None, Err("NAMESPACE/NAME")),
            ("", None, Err("NAMESPACE/NAME")),
            ("..", None, Err("NAMESPACE/NAME")),
            ("web 0", None, Err("NAMESPACE/NAME")),
        ] {
            match (parse_pod(text, flag, DEFAULT_NAMESPACE), shown) {
                (Ok(pod), Ok(shown)) => assert_eq!(pod, shown, "{text} {flag:?}"),
                (Err(UsageError(error)), Err(words)) => assert!(error.contains(words), "{text} {flag:?}: {error}"),
                (parsed, _) => panic!("{text} {flag:?}: {parsed:?}"),
            }
        }
    }

    #[test]
    fn object_is_named_by_one_or_two_arguments() {
        let named = |kind: &str, name: Option<&str>, namespace: Option<&str>| {
            let arg = ObjectArg {
                kind: Some(kind.to_owned()),
                name: name.map(str::to_owned),
                namespace: namespace.map(str::to_owned),
            };
            arg.required_name().map(|name| name.to_string())
        };
        for (kind, name, namespace, shown) in [
            ("deploy", Some("web"), Some("shop"), "deploy/shop/web"),
            ("Deployment.apps", Some("shop/web"), None, "Deployment.apps/shop/web"),
            ("Namespace", Some("old"), None, "Namespace/old"),
            (UID, None, None, UID),
        ] {
            assert_eq!(named(kind, name, namespace).unwrap(), shown);
        }
        for (kind, name, namespace, words) in [
            ("deploy", None, None, "has no NAME"),
            ("deploy/web", None, None, "has no NAME"),
            ("deploy", Some("a/web"), Some("b"), "two namespaces"),
            ("deploy", Some(""), None, "must be"),
        ] {
            let UsageError(error) = named(kind, name, namespace).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
