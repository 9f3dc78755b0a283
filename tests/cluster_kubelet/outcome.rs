//! Result of a pod as a flat map: a path for every field of its status and for every event. IDs, addresses and times, which
//! differ between any two pods, are replaced by placeholders.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use crate::half::Outcome;

/// By path.
pub type Fields = BTreeMap<String, String>;

/// Reasons of start events, which a kubelet continues to send for a while.
const START_REASONS: [&str; 10] = [
    "BackOff",
    "Created",
    "ErrImageNeverPull",
    "Failed",
    "FailedMount",
    "InspectFailed",
    "Pulled",
    "Pulling",
    "Started",
    "Unhealthy",
];
/// Read from the pod's cgroup, which may be incomplete at that moment: two pods of one kubelet with the same spec differ. The
/// agent does not change it.
const RESOURCES: &str = "resources";
/// User of a container. Empty if containerd 2 could not read it, as during a removal: two pods of one kubelet differ. The
/// agent does not change it.
const USER: &str = "user";
/// A container ID is a SHA-256 in hexadecimal digits.
const ID_LENGTH: usize = 64;

impl Outcome {
    /// See the module's documentation.
    pub fn fields(&self) -> Fields {
        let mut fields = Fields::new();
        let mut status = self.after["status"].clone();
        if let Some(status) = status.as_object_mut() {
            status.remove(RESOURCES);
        }
        Walk { outcome: self }.object("", &status, &self.before["status"], &mut fields);
        let mut events = BTreeMap::<String, usize>::new();
        for event in &self.events {
            let text = |key: &str| event[key].as_str().unwrap_or_default();
            if START_REASONS.contains(&text("reason")) {
                continue;
            }
            let at = event["involvedObject"]["fieldPath"].as_str().unwrap_or("the pod");
            let key = format!("event {} of {at}", text("reason"));
            let nth = events.entry(key.clone()).or_default();
            *nth += 1;
            let key = if *nth == 1 { key } else { format!("{key} ({nth})") };
            fields.insert(key, format!("{}: {}", text("type"), self.neutral(text("message"))));
        }
        fields
    }

    /// Short text for the table.
    pub fn summary(&self) -> String {
        let status = &self.after["status"];
        let mut words = vec![status["phase"].as_str().unwrap_or("none").to_owned()];
        words.extend(status["reason"].as_str().map(str::to_owned));
        let lists = [
            "initContainerStatuses",
            "containerStatuses",
            "ephemeralContainerStatuses",
        ];
        for entry in lists
            .iter()
            .flat_map(|list| status[list].as_array().into_iter().flatten())
        {
            let state = &entry["state"];
            let name = entry["name"].as_str().unwrap_or_default();
            let reason = |state: &Value| state["reason"].as_str().unwrap_or("-").to_owned();
            words.push(match (&state["terminated"], &state["waiting"]) {
                (Value::Null, Value::Null) => format!("{name}=running"),
                (Value::Null, waiting) => format!("{name}={}", reason(waiting)),
                (end, _) => format!("{name}={}/{}", end["exitCode"], reason(end)),
            });
        }
        words.join(" ")
    }

    /// Replaces IDs, names and times.
    fn neutral(&self, text: &str) -> String {
        let metadata = &self.after["metadata"];
        let mut text = without_ids(text);
        for (key, instead) in [("uid", "<uid>"), ("namespace", "<namespace>")] {
            text = text.replace(metadata[key].as_str().unwrap_or_default(), instead);
        }
        // A kubelet's backoff depends on the number of restarts.
        let mut words: Vec<_> = text.split(' ').collect();
        for at in 1..words.len() {
            if words[at - 1] == "back-off" {
                words[at] = "<a while>";
            }
        }
        words.join(" ")
    }
}

struct Walk<'a> {
    outcome: &'a Outcome,
}

impl Walk<'_> {
    fn object(&self, path: &str, object: &Value, before: &Value, fields: &mut Fields) {
        for (key, value) in object.as_object().into_iter().flatten() {
            let at = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            self.value(&at, key, value, object, before, fields);
        }
    }

    fn value(&self, at: &str, key: &str, value: &Value, object: &Value, before: &Value, fields: &mut Fields) {
        match value {
            Value::Object(user) if key == USER && user.is_empty() => {
                self.object(at, &before[key], &before[key], fields);
            }
            Value::Object(_) => self.object(at, value, &before[key], fields),
            Value::Array(list) => self.list(at, list, &before[key], fields),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                fields.insert(at.to_owned(), self.leaf(key, value, object, before));
            }
        }
    }

    /// Items by their keys, and their order.
    fn list(&self, at: &str, list: &[Value], before: &Value, fields: &mut Fields) {
        let names: Vec<_> = list.iter().enumerate().map(|(index, item)| name(index, item)).collect();
        fields.insert(format!("{at}[]"), names.join(" "));
        for (item, name) in list.iter().zip(names) {
            let same = |(index, old): &(usize, &Value)| self::name(*index, old) == name;
            let old = before.as_array().and_then(|old| old.iter().enumerate().find(same));
            let at = format!("{at}[{name}]");
            if item.is_object() {
                self.object(&at, item, old.map_or(&Value::Null, |(_, old)| old), fields);
            } else {
                fields.insert(at, self.leaf("", item, &Value::Null, &Value::Null));
            }
        }
    }

    fn leaf(&self, key: &str, value: &Value, object: &Value, before: &Value) -> String {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match key {
            "startTime" | "startedAt" | "finishedAt" | "lastTransitionTime" | "lastProbeTime" => {
                self.moment(value).to_owned()
            }
            "containerID" if object["exitCode"].is_null() => without_ids(&text),
            "containerID" if self.is_id_of_an_entry(value) => "the container's own".to_owned(),
            "containerID" => format!("another: {}", without_ids(&text)),
            "podIP" | "ip" if !text.is_empty() && self.outcome.after["status"]["hostIP"] != *value => {
                "<address>".to_owned()
            }
            "restartCount" => {
                let more = value.as_i64().unwrap_or_default() - before["restartCount"].as_i64().unwrap_or_default();
                format!("{more} more")
            }
            "observedGeneration" => {
                let generation = self.outcome.after["metadata"]["generation"]
                    .as_i64()
                    .unwrap_or_default();
                let behind = generation - value.as_i64().unwrap_or_default();
                format!("{behind} behind")
            }
            _ => self.outcome.neutral(&text),
        }
    }

    /// Whether a time is before or after the deletion or eviction.
    fn moment(&self, value: &Value) -> &'static str {
        match value.as_str().map(str::parse::<Timestamp>) {
            None => "null",
            Some(Ok(time)) if time == Timestamp::UNIX_EPOCH => "1970",
            Some(Ok(time)) if time < self.outcome.began => "before the end",
            Some(Ok(_)) => "at the end",
            Some(Err(_)) => "no time",
        }
    }

    fn is_id_of_an_entry(&self, id: &Value) -> bool {
        let status = &self.outcome.after["status"];
        [
            "initContainerStatuses",
            "containerStatuses",
            "ephemeralContainerStatuses",
        ]
        .iter()
        .flat_map(|list| status[list].as_array().into_iter().flatten())
        .any(|entry| entry["containerID"] == *id && entry["state"]["terminated"]["containerID"] == *id)
    }
}

fn name(index: usize, item: &Value) -> String {
    let named = ["name", "type"].iter().find_map(|key| item[*key].as_str());
    named.map_or_else(|| index.to_string(), str::to_owned)
}

fn without_ids(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut digits = String::new();
    for character in text.chars().map(Some).chain([None]) {
        match character {
            Some(digit @ ('0'..='9' | 'a'..='f')) => digits.push(digit),
            other => {
                out.push_str(if digits.len() == ID_LENGTH { "<id>" } else { &digits });
                digits.clear();
                out.extend(other);
            }
        }
    }
    out
}
