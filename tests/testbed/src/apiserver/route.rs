//! Where a path leads.

use percent_encoding::percent_decode_str;

use super::error::ApiError;
use super::kinds::Kind;
use super::kinds::built_in::KINDS;
use super::kinds::served::Served;

/// Target of a path.
#[derive(Debug)]
pub enum Route {
    Objects(Target),
    /// A SelfSubjectAccessReview.
    AccessReview,
    /// `/healthz` and its siblings.
    Health,
    /// `/version`.
    Version,
    /// The groups and kinds that are served.
    Discovery(&'static str),
    /// The testbed's own control paths.
    Testbed(String),
}

/// One object, all of a kind, or all of a kind in a namespace. Fields that do not apply are empty.
#[derive(Debug)]
pub struct Target {
    pub kind: &'static Kind,
    pub namespace: String,
    pub name: String,
    pub subresource: String,
}

/// Reads a path.
pub fn parse(served: &Served, path: &str) -> Result<Route, ApiError> {
    let parts: Vec<String> = path.trim_matches('/').split('/').map(decode).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match parts.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => Ok(Route::Health),
        ["version"] => Ok(Route::Version),
        ["api"] => Ok(Route::Discovery("api")),
        ["apis"] => Ok(Route::Discovery("apis")),
        ["api", "v1", rest @ ..] => objects(served, "", "v1", rest),
        ["api", _, ..] => Err(ApiError::no_such_resource()),
        ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"] => Ok(Route::AccessReview),
        ["apis", group, version, ..] if is_unheard_of(served, group, version) => Err(ApiError::no_such_resource()),
        ["apis", group, version, rest @ ..] => objects(served, group, version, rest),
        ["testbed", rest @ ..] => Ok(Route::Testbed(rest.join("/"))),
        _ => Err(ApiError::no_such_path()),
    }
}

fn objects(served: &Served, group: &str, version: &str, parts: &[&str]) -> Result<Route, ApiError> {
    if served.is_away(group, version) {
        return Err(ApiError::away());
    }
    let missing = if is_built_in(group) {
        ApiError::no_such_resource
    } else {
        ApiError::no_such_path
    };
    let (namespace, parts) = match parts {
        ["namespaces", _, "status" | "finalize"] => ("", parts),
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        _ => ("", parts),
    };
    let (resource, name, subresource) = match parts {
        [resource] => (*resource, "", ""),
        [resource, name] => (*resource, *name, ""),
        [resource, name, subresource] => (*resource, *name, *subresource),
        _ => return Err(missing()),
    };
    let kind = served.find(group, version, resource).ok_or_else(missing)?;
    let homeless = kind.namespaced && namespace.is_empty() && !name.is_empty();
    if homeless || (!kind.namespaced && !namespace.is_empty()) {
        return Err(missing());
    }
    Ok(Route::Objects(Target {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        subresource: subresource.to_owned(),
    }))
}

/// A missing resource of a built-in group is answered with a `Status`, any other with plain text.
fn is_built_in(group: &str) -> bool {
    KINDS.iter().any(|kind| kind.group == group)
}

/// Whether a built-in group has no such version.
fn is_unheard_of(served: &Served, group: &str, version: &str) -> bool {
    is_built_in(group) && !served.has(group, version) && !served.is_away(group, version)
}

fn decode(part: &str) -> String {
    percent_decode_str(part).decode_utf8_lossy().into_owned()
}

impl Target {
    pub fn key(&self) -> String {
        self.kind.key(&self.namespace, &self.name)
    }

    /// Common prefix of the keys of all addressed objects.
    pub fn prefix(&self) -> String {
        if self.namespace.is_empty() {
            String::new()
        } else {
            format!("{}/", self.namespace)
        }
    }

    /// The resource with its subresource: `pods/status`.
    pub fn resource(&self) -> String {
        if self.subresource.is_empty() {
            self.kind.resource.to_owned()
        } else {
            format!("{}/{}", self.kind.resource, self.subresource)
        }
    }
}
