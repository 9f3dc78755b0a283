//! Pure: the three kinds of patch.

mod strategic;

use serde_json::Value;

use super::error::ApiError;
use super::kinds::Kind;
use super::object;

/// A patch, read but not applied.
#[derive(Debug)]
pub enum Patch {
    /// RFC 7386.
    Merge(Value),
    /// RFC 6902.
    Json(json_patch::Patch),
    /// Kubernetes' own: a merge that knows which lists are maps.
    Strategic(Value),
}

const ACCEPTED: &str =
    "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json";
const ACCEPTED_CUSTOM: &str = "application/json-patch+json, application/merge-patch+json";

impl Patch {
    /// Reads the body of a PATCH by its Content-Type.
    pub fn parse(kind: &'static Kind, content_type: &str, body: &[u8]) -> Result<Self, ApiError> {
        let media = content_type.split(';').next().unwrap_or_default().trim();
        let unreadable = |error: serde_json::Error| ApiError::bad_request(format!("error decoding patch: {error}"));
        let map = || match serde_json::from_slice(body).map_err(unreadable)? {
            Value::Object(map) => Ok(Value::Object(map)),
            _ => Err(ApiError::bad_request("error decoding patch: it is not an object")),
        };
        match media {
            "application/merge-patch+json" => Ok(Patch::Merge(map()?)),
            // Merge keys of custom kinds are unknown.
            "application/strategic-merge-patch+json" if !kind.custom => Ok(Patch::Strategic(map()?)),
            "application/json-patch+json" => serde_json::from_slice(body).map(Patch::Json).map_err(unreadable),
            _ if kind.custom => Err(ApiError::unsupported_media(ACCEPTED_CUSTOM)),
            _ => Err(ApiError::unsupported_media(ACCEPTED)),
        }
    }

    /// The object as the patch wants it; its kind and apiVersion are there for the patch to see, and left out after.
    pub fn apply(&self, kind: &'static Kind, object: &Value) -> Result<Value, ApiError> {
        let mut patched = object.clone();
        patched["kind"] = kind.kind.into();
        patched["apiVersion"] = kind.api_version().into();
        match self {
            Patch::Merge(patch) => json_patch::merge(&mut patched, patch),
            Patch::Json(patch) => json_patch::patch(&mut patched, patch).map_err(|_| ApiError::unprocessable())?,
            Patch::Strategic(patch) => strategic::merge(&mut patched, patch)?,
        }
        object::drop_type(&mut patched);
        if patched.get("metadata").is_some_and(Value::is_object) {
            Ok(patched)
        } else {
            Err(ApiError::unprocessable())
        }
    }
}
