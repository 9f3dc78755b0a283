//! Objects as a typed server writes them: no nulls, no empty lists, times in their one form.

use jiff::{Timestamp, civil};
use serde_json::Value;

use crate::apiserver::kinds::Kind;
use crate::apiserver::object;

/// Fields of type `metav1.Time`: whole seconds, fractions are cut.
const TIMES: &[&str] = &[
    "completionTime",
    "creationTimestamp",
    "deletionTimestamp",
    "finishedAt",
    "firstTimestamp",
    "lastHeartbeatTime",
    "lastProbeTime",
    "lastTimestamp",
    "lastTransitionTime",
    "startTime",
    "startedAt",
    "timeAdded",
];

/// Fields of type `metav1.MicroTime`: six digits, nothing else is read.
const MICRO_TIMES: &[&str] = &["acquireTime", "eventTime", "lastObservedTime", "renewTime"];

/// Maps whose keys are the user's: nothing in them is a field.
const USER_MAPS: &[&str] = &[
    "annotations",
    "binaryData",
    "data",
    "labels",
    "matchLabels",
    "nodeSelector",
    "stringData",
];

/// Lists that are written even when empty.
const KEPT_LISTS: &[&str] = &["containers"];

/// Brings `value` into the form in which it is stored. Of a custom object only the metadata is typed.
pub fn normalize(kind: &'static Kind, value: &mut Value) -> Result<(), String> {
    if kind.custom {
        walk(&mut value["metadata"])?;
    } else {
        walk(value)?;
    }
    let metadata = object::metadata_mut(value);
    for field in ["labels", "annotations"] {
        if metadata
            .get(field)
            .and_then(Value::as_object)
            .is_some_and(serde_json::Map::is_empty)
        {
            metadata.remove(field);
        }
    }
    Ok(())
}

fn walk(value: &mut Value) -> Result<(), String> {
    match value {
        Value::Object(map) => {
            map.retain(|key, value| !value.is_null() && (!is_empty_list(value) || KEPT_LISTS.contains(&key.as_str())));
            for (key, value) in map.iter_mut() {
                let key = key.as_str();
                match value {
                    Value::String(text) if TIMES.contains(&key) => *text = whole_seconds(text)?,
                    Value::String(text) if MICRO_TIMES.contains(&key) => check_micro(text)?,
                    _ if USER_MAPS.contains(&key) => {}
                    _ => walk(value)?,
                }
            }
        }
        Value::Array(list) => list.iter_mut().try_for_each(walk)?,
        _ => {}
    }
    Ok(())
}

fn is_empty_list(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

fn whole_seconds(text: &str) -> Result<String, String> {
    // Up to the last second of the year 9999, which is more than the library can tell.
    let last_days = || {
        let date = text.strip_suffix('Z')?.parse::<civil::DateTime>().ok()?;
        Some(date.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    };
    let time = text.parse().ok().map(object::stamp);
    time.or_else(last_days)
        .ok_or_else(|| format!("parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse it"))
}

fn check_micro(text: &str) -> Result<(), String> {
    let digits = text
        .split_once('.')
        .map_or(0, |(_, rest)| rest.chars().take_while(char::is_ascii_digit).count());
    if digits == 6 && text.parse::<Timestamp>().is_ok() {
        Ok(())
    } else {
        Err(format!(
            "parsing time {text:?} as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse it"
        ))
    }
}
