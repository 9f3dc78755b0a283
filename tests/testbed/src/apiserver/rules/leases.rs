//! Rules for Leases.

use serde_json::Value;

use crate::apiserver::error::Cause;

/// The least that a number of the spec may be.
const LEAST: [(&str, i64, &str); 2] = [
    ("leaseDurationSeconds", 1, "must be greater than 0"),
    ("leaseTransitions", 0, "must be greater than or equal to 0"),
];

/// Errors of a Lease.
pub fn complaints(lease: &Value) -> Vec<Cause> {
    let wrong = LEAST.iter().filter_map(|&(field, least, why)| {
        let value = &lease["spec"][field];
        value
            .as_i64()
            .is_some_and(|number| number < least)
            .then(|| Cause::invalid(&format!("spec.{field}"), value, why))
    });
    wrong.collect()
}
