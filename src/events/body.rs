//! Events in the JSON of the API.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::model::event::Reason;

/// Maximum length of an object's name (DNS subdomain, RFC 1123).
const NAME_LIMIT: usize = 253;

/// The fields of an event.
pub struct Event<'a> {
    /// Name of this node.
    pub host: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    /// `involvedObject`.
    pub involved: &'a Value,
    pub reason: Reason,
    pub message: &'a str,
    pub count: u32,
    /// `firstTimestamp`.
    pub first_timestamp: Timestamp,
    /// `lastTimestamp`.
    pub last_timestamp: Timestamp,
}

// === impl Event ===

impl Event<'_> {
    /// The body of a create request.
    pub fn create(&self) -> Value {
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
            "firstTimestamp": seconds(self.first_timestamp),
            "lastTimestamp": seconds(self.last_timestamp),
            "count": self.count,
        })
    }

    /// The body of a patch that counts a repetition.
    pub fn patch(&self) -> Value {
        json!({ "message": self.message, "lastTimestamp": seconds(self.last_timestamp), "count": self.count })
    }
}

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Name of an event: the object's name, truncated if it is too long, and the time in hex. No label of a name may end with a dash.
pub fn name(pod: &str, now: Timestamp) -> String {
    let moment = format!("{:x}", now.as_nanosecond());
    let kept = &pod[..pod.floor_char_boundary(NAME_LIMIT - 1 - moment.len())];
    format!("{}.{moment}", kept.trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_pod_name_is_truncated_to_a_valid_name() {
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
