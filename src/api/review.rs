//! The question whether an identity may do something.

use bytes::Bytes;
use serde_json::{Value, json};

/// Where it is asked.
pub(super) const PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// The question.
pub(super) fn of(attributes: &Value) -> Bytes {
    let review = json!({
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "spec": { "resourceAttributes": attributes },
    });
    review.to_string().into()
}

/// The answer.
pub(super) fn is_granted(review: &Value) -> bool {
    review["status"]["allowed"].as_bool().unwrap_or(false)
}
