//! Options of a DELETE, from its body.

use serde_json::Value;

use crate::apiserver::error::{ApiError, Cause};
use crate::apiserver::kinds::Kind;
use crate::apiserver::object;

/// Propagation policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// They are collected afterwards.
    Background,
    /// They go first.
    Foreground,
    /// They stay.
    Orphan,
}

/// `DeleteOptions`, read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// The grace asked for, in seconds.
    pub grace: Option<i64>,
    /// The UID that the object must have.
    pub uid: Option<String>,
    /// The version that the object must have.
    pub version: Option<String>,
    /// The old way to name a policy.
    pub orphan_dependents: Option<bool>,
    pub policy: Option<Policy>,
}

impl DeleteOptions {
    /// Reads the options of a request; without a body there are none.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        if body.is_empty() {
            return Ok(Self::default());
        }
        let (policy, options) = from_body(body)?;
        options.with_policy(policy.as_deref())
    }

    fn with_policy(mut self, policy: Option<&str>) -> Result<Self, ApiError> {
        let field = "propagationPolicy";
        self.policy = match policy {
            None | Some("") => None,
            Some("Background") => Some(Policy::Background),
            Some("Foreground") => Some(Policy::Foreground),
            Some("Orphan") => Some(Policy::Orphan),
            Some(other) => {
                let cause = Cause::invalid(
                    field,
                    &other.into(),
                    "must be one of the supported values: \"Background\", \"Foreground\", \"Orphan\", nil",
                );
                return Err(ApiError::invalid_options("DeleteOptions", vec![cause]));
            }
        };
        if let (Some(policy), Some(_)) = (policy, self.orphan_dependents) {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            let cause = Cause::invalid(field, &policy.into(), why);
            return Err(ApiError::invalid_options("DeleteOptions", vec![cause]));
        }
        Ok(self)
    }

    /// Checks the preconditions against the stored object.
    pub fn check(&self, kind: &'static Kind, stored: &Value) -> Result<(), ApiError> {
        let name = object::name(stored);
        if let Some(uid) = self.uid.as_deref().filter(|uid| *uid != object::uid(stored)) {
            let why = format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({}). \
                 The object might have been deleted and then recreated",
                object::uid(stored)
            );
            return Err(ApiError::precondition(kind, name, &why));
        }
        if let Some(version) = self
            .version
            .as_deref()
            .filter(|version| *version != object::version(stored))
        {
            let why = format!(
                "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record \
                 ({}). The object might have been modified",
                object::version(stored)
            );
            return Err(ApiError::precondition(kind, name, &why));
        }
        Ok(())
    }
}

fn from_body(body: &[u8]) -> Result<(Option<String>, DeleteOptions), ApiError> {
    let body: Value = serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("couldn't get version/kind; json parse error: {error}")))?;
    let kind = object::text(&body, "/kind");
    if !kind.is_empty() && kind != "DeleteOptions" {
        return Err(ApiError::bad_request(format!(
            "decoded object cannot be converted to DeleteOptions: it is a {kind}"
        )));
    }
    if body.get("dryRun").is_some() {
        return Err(ApiError::bad_request("this server does not serve dryRun"));
    }
    let word = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let options = DeleteOptions {
        grace: body.get("gracePeriodSeconds").and_then(Value::as_i64),
        uid: word("/preconditions/uid"),
        version: word("/preconditions/resourceVersion"),
        orphan_dependents: body.get("orphanDependents").and_then(Value::as_bool),
        policy: None,
    };
    Ok((word("/propagationPolicy"), options))
}
