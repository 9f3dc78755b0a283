//! Details of a refusal, and the fields at fault.

use serde::Serialize;
use serde_json::Value;

/// Details of a refusal.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) name: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) group: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) kind: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) causes: Vec<Cause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after_seconds: Option<u64>,
}

/// One field that is at fault, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cause {
    pub(super) reason: &'static str,
    pub(super) message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) field: String,
}

impl Cause {
    /// A value that the field may not have.
    pub fn invalid(field: &str, value: &Value, why: &str) -> Self {
        Cause {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {value}: {why}"),
            field: field.to_owned(),
        }
    }

    /// A change that the field does not take.
    pub fn forbidden(field: &str, why: &str) -> Self {
        Cause {
            reason: "FieldValueForbidden",
            message: format!("Forbidden: {why}"),
            field: field.to_owned(),
        }
    }

    pub fn required(field: &str, why: &str) -> Self {
        let message = if why.is_empty() {
            "Required value".to_owned()
        } else {
            format!("Required value: {why}")
        };
        Cause {
            reason: "FieldValueRequired",
            message,
            field: field.to_owned(),
        }
    }
}
