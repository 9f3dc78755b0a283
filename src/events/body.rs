//! An event as the API server takes it.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::model::event::Reason;

/// Of any object's name.
const NAME_LIMIT: usize = 253;

/// All that an event says.
pub struct Event<'a> {
    /// Node that it comes from.
    pub host: &'a str,
    /// Where it lies.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// What it is about.
    pub involved: &'a Value,
    /// Why.
    pub reason: Reason,
    /// For people.
    pub message: &'a str,
    /// How often it happened.
    pub count: u32,
    /// For the first time.
    pub first: Timestamp,
    /// For the last time.
    pub last: Timestamp,
}

// === impl Event ===

impl Event<'_> {
    /// Whole.
    pub fn whole(&self) -> Value {
        json!({
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": { "namespace": self.namespace, "name": self.name },
            "involvedObject": self.involved,
            "reason": self.reason.as_str(),
            "message": self.message,
            "type": self.reason.kind(),
            "source": { "component": "pod-teardown", "host": self.host },
            "reportingComponent": "pod-teardown",
            "reportingInstance": self.host,
            "firstTimestamp": seconds(self.first),
            "lastTimestamp": seconds(self.last),
            "count": self.count,
        })
    }

    /// What is new, where it happened before.
    pub fn again(&self) -> Value {
        json!({ "message": self.message, "lastTimestamp": seconds(self.last), "count": self.count })
    }
}

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The pod's name, shortened if need be, and the moment. No part of a name may end with a dash or be empty.
pub fn name(pod: &str, now: Timestamp) -> String {
    let moment = format!("{:x}", now.as_nanosecond());
    let kept = &pod[..pod.floor_char_boundary(NAME_LIMIT - 1 - moment.len())];
    format!("{}.{moment}", kept.trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_pod_name_is_shortened_to_what_a_name_may_be() {
        let now = Timestamp::now();
        let moment = format!(".{:x}", now.as_nanosecond());
        assert_eq!(name("web-0", now), format!("web-0{moment}"));
        let long = name(&"a".repeat(253), now);
        assert_eq!(long.len(), NAME_LIMIT);
        assert!(long.ends_with(&moment));
        let cut_at_dashes = name(&format!("{}{}", "a".repeat(230), "-.".repeat(10)), now);
        assert_eq!(cut_at_dashes, format!("{}{moment}", "a".repeat(230)));
    }
}
