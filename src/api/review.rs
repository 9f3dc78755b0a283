//! SelfSubjectAccessReviews.

use bytes::Bytes;
use serde_json::{Value, json};

pub(super) const PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Body of a review.
pub(super) fn body(attributes: &Value) -> Bytes {
    let review = json!({
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "spec": { "resourceAttributes": attributes },
    });
    review.to_string().into()
}

/// Whether the answer allows it.
pub(super) fn is_granted(review: &Value) -> bool {
    review["status"]["allowed"].as_bool().unwrap_or(false)
}
