//! A refused request: the one error type of the server, rendered as a Kubernetes `Status`.

pub mod cause;

use serde_json::{Value, json};

use super::kinds::Kind;
pub use cause::Cause;
use cause::Details;

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{code} {reason}: {message}")]
pub struct ApiError {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason; empty where the API server gives none.
    pub reason: &'static str,
    pub message: String,
    details: Option<Box<Details>>,
    continue_token: Option<String>,
    plain: bool,
}

impl ApiError {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        ApiError {
            code,
            reason,
            message: message.into(),
            details: None,
            continue_token: None,
            plain: false,
        }
    }

    /// What it is about: the object, and how the answer names its kind.
    fn about(mut self, kind: &'static Kind, name: &str, shown: &'static str) -> Self {
        let details = self.details.get_or_insert_default();
        name.clone_into(&mut details.name);
        (details.group, details.kind) = (kind.group, shown);
        self
    }

    /// With details that say nothing.
    fn with_details(mut self) -> Self {
        self.details.get_or_insert_default();
        self
    }

    /// With a text for a body.
    fn plain(mut self) -> Self {
        self.plain = true;
        self
    }

    fn with_retry_after(mut self, seconds: Option<u64>) -> Self {
        if seconds.is_some() {
            self.details.get_or_insert_default().retry_after_seconds = seconds;
        }
        self
    }

    fn with_causes(mut self, causes: Vec<Cause>) -> Self {
        self.details.get_or_insert_default().causes = causes;
        self
    }

    /// The request makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        ApiError::new(400, "BadRequest", message)
    }

    /// The token is unknown.
    pub fn unauthorized() -> Self {
        ApiError::new(401, "Unauthorized", "Unauthorized")
    }

    /// Not for this user, or not now.
    pub fn forbidden(kind: &'static Kind, name: &str, why: &str) -> Self {
        let resource = kind.group_resource();
        let subject = if name.is_empty() {
            resource
        } else {
            format!("{resource} \"{name}\"")
        };
        ApiError::new(403, "Forbidden", format!("{subject} is forbidden: {why}")).about(kind, name, kind.resource)
    }

    /// A path, not an object, that this user may not ask for.
    pub fn forbidden_path(user: &str, verb: &str, path: &str) -> Self {
        let message = format!("forbidden: User \"{user}\" cannot {verb} path \"{path}\"");
        ApiError::new(403, "Forbidden", message).with_details()
    }

    /// Nothing may be created in a terminating namespace.
    pub fn namespace_terminating(kind: &'static Kind, name: &str, namespace: &str) -> Self {
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        let cause = Cause {
            reason: "NamespaceTerminating",
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".to_owned(),
        };
        ApiError::forbidden(kind, name, &why).with_causes(vec![cause])
    }

    pub fn not_found(kind: &'static Kind, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", kind.group_resource());
        ApiError::new(404, "NotFound", message).about(kind, name, kind.resource)
    }

    /// A core path that leads to no resource: a `Status` that names no object.
    pub fn no_such_resource() -> Self {
        ApiError::new(404, "NotFound", "the server could not find the requested resource").with_details()
    }

    /// A path that leads nowhere: no `Status` at all.
    pub fn no_such_path() -> Self {
        ApiError::new(404, "NotFound", "404 page not found").plain()
    }

    /// The resource is there, but not for this verb.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        ApiError::new(405, "MethodNotAllowed", message).with_details()
    }

    /// No answer in a form that the client reads.
    pub fn not_acceptable() -> Self {
        ApiError::new(
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json, application/yaml, \
             application/vnd.kubernetes.protobuf",
        )
    }

    /// Metadata was asked for in the form of a list and is that of one object, or the other way round.
    pub fn wrong_shape(asked: &str, found: &str) -> Self {
        let message = format!("you requested {asked}, but the requested object is {found}");
        ApiError::new(406, "NotAcceptable", message)
    }

    /// A path that leads to another server, which cannot be reached: no `Status` at all.
    pub fn away() -> Self {
        ApiError::new(503, "ServiceUnavailable", "service unavailable").plain()
    }

    /// The name is taken.
    pub fn already_exists(kind: &'static Kind, name: &str, deleting: bool) -> Self {
        let prefix = if deleting { "object is being deleted: " } else { "" };
        let message = format!("{prefix}{} \"{name}\" already exists", kind.group_resource());
        ApiError::new(409, "AlreadyExists", message).about(kind, name, kind.resource)
    }

    /// The object has changed in between.
    pub fn modified(kind: &'static Kind, name: &str) -> Self {
        const WHY: &str = "the object has been modified; please apply your changes to the latest version and try again";
        ApiError::conflict(kind, name, WHY)
    }

    /// A write that conflicts with the stored object; `details.kind` is the resource.
    pub fn conflict(kind: &'static Kind, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            kind.group_resource()
        );
        ApiError::new(409, "Conflict", message).about(kind, name, kind.resource)
    }

    /// A DELETE whose precondition fails; message and `details.kind` name the kind.
    pub fn precondition(kind: &'static Kind, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            kind.group_kind()
        );
        ApiError::new(409, "Conflict", message).about(kind, name, kind.kind)
    }

    /// The requested history is compacted.
    pub fn expired(message: impl Into<String>) -> Self {
        ApiError::new(410, "Expired", message)
    }

    /// A continued list whose first page is too old; `token` continues with the current objects.
    pub fn continue_expired(token: String) -> Self {
        const WHY: &str = "The provided continue parameter is too old to display a consistent list result. \
            Start again without it, or go on inconsistently with the continue token of this answer.";
        ApiError {
            continue_token: Some(token),
            ..ApiError::expired(WHY)
        }
    }

    /// A body in a form that is not understood.
    pub fn unsupported_media(accepted: &str) -> Self {
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        ApiError::new(415, "UnsupportedMediaType", message)
    }

    /// An object that breaks the rules of its kind.
    pub fn invalid(kind: &'static Kind, name: &str, causes: Vec<Cause>) -> Self {
        ApiError::invalid_named(&kind.group_kind(), name, causes).about(kind, name, kind.kind)
    }

    /// Options that break the rules: `what` is their kind.
    pub fn invalid_options(what: &'static str, causes: Vec<Cause>) -> Self {
        let mut error = ApiError::invalid_named(&format!("{what}.meta.k8s.io"), "", causes);
        if let Some(details) = &mut error.details {
            details.group = "meta.k8s.io";
            details.kind = what;
        }
        error
    }

    /// A PUT without the version that the kind insists on; its message names the resource.
    pub fn version_required(kind: &'static Kind, name: &str) -> Self {
        let cause = Cause {
            reason: "FieldValueInvalid",
            message: "Invalid value: 0x0: must be specified for an update".to_owned(),
            field: "metadata.resourceVersion".to_owned(),
        };
        ApiError::invalid_named(&kind.group_resource(), name, vec![cause]).about(kind, name, kind.resource)
    }

    fn invalid_named(subject: &str, name: &str, causes: Vec<Cause>) -> Self {
        let mut lines: Vec<String> = causes
            .iter()
            .map(|cause| format!("{}: {}", cause.field, cause.message))
            .collect();
        // Equal causes appear once in the message, and each time in the causes.
        let mut seen = std::collections::HashSet::new();
        lines.retain(|line| seen.insert(line.clone()));
        let lines = if lines.len() == 1 {
            lines.concat()
        } else {
            format!("[{}]", lines.join(", "))
        };
        ApiError::new(422, "Invalid", format!("{subject} \"{name}\" is invalid: {lines}")).with_causes(causes)
    }

    /// A patch that cannot be applied.
    pub fn unprocessable() -> Self {
        let message = "the server rejected our request due to an error in our request";
        ApiError::new(422, "Invalid", message).with_details()
    }

    /// A failure that the API server gives no reason for.
    pub fn internal(message: impl Into<String>) -> Self {
        ApiError::new(500, "", message)
    }

    /// An object in the store cannot be read.
    pub fn storage_read() -> Self {
        ApiError::new(
            500,
            "StorageReadError",
            "failed to read one or more resources from the storage",
        )
    }

    /// The store has a Secret whose key is gone. Recorded from kube-apiserver 1.37.2.
    pub fn lost_key(verb: &str) -> Self {
        let cause = "StorageError: corrupt object, Code: 7, Key: /registry/secrets/default/lost, ResourceVersion: 0, \
                     AdditionalErrorMsg: data from the storage is not transformable revision=0: no matching key was found for \
                     the provided AES transformer";
        let message = format!("failed to read one or more secrets from the storage: {cause}");
        if verb == "watch" {
            let message = format!("storage is (re)initializing: failed to list <unspecified>: {message}");
            return ApiError::new(429, "TooManyRequests", message).with_retry_after(Some(30));
        }
        let cause = Cause {
            reason: "UnexpectedServerResponse",
            message: cause.to_owned(),
            field: "/registry/secrets/default/lost".to_owned(),
        };
        ApiError::new(500, "StorageReadError", message).with_causes(vec![cause])
    }

    /// A resourceVersion that is not reached in time.
    pub fn version_too_large(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let cause = Cause {
            reason: "ResourceVersionTooLarge",
            message: "Too large resource version".to_owned(),
            field: String::new(),
        };
        ApiError::new(504, "Timeout", message)
            .with_causes(vec![cause])
            .with_retry_after(Some(1))
    }

    /// What a fault asks for: a plain `Status` with this code.
    pub fn injected(code: u16, retry_after: Option<u64>) -> Self {
        let reason = match code {
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            410 => "Expired",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "",
        };
        ApiError::new(code, reason, "a fault that the test asked for").with_retry_after(retry_after)
    }

    /// Seconds for the `Retry-After` header.
    pub fn retry_after(&self) -> Option<u64> {
        self.details.as_ref().and_then(|details| details.retry_after_seconds)
    }

    /// Whether the body is the bare message rather than a `Status`.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// The `Status` of the answer.
    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if let Some(token) = &self.continue_token {
            status["metadata"]["continue"] = token.as_str().into();
        }
        if let Some(details) = &self.details {
            status["details"] = json!(details);
        }
        status
    }
}
