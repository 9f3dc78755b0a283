//! Pure: the effect of one DELETE on an object, from its grace period, finalizers and policy.

pub mod options;

use jiff::Timestamp;
use serde_json::Value;

use super::kinds::{Dependents, Kind};
use super::object;
use options::{DeleteOptions, Policy};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// Result of a DELETE.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// It is being deleted already.
    Unchanged,
    /// It is kept, in this state, until its grace period has expired or its finalizers are removed.
    Held(Value),
    /// It is deleted, after this last state was stored if there is one.
    Removed {
        /// The state that watchers see before the deletion.
        last: Option<Value>,
    },
}

/// The grace period that a DELETE sets, and its end.
#[derive(Debug, PartialEq, Eq)]
enum Grace {
    /// Not a matter of grace.
    None,
    /// One is running, and this request does not shorten it.
    Running,
    Set {
        seconds: i64,
        until: Timestamp,
    },
}

/// Decides about `object`.
pub fn decide(kind: &'static Kind, object: &Value, options: &DeleteOptions, now: Timestamp) -> Outcome {
    let grace = grace(kind, object, options, now);
    let (seconds, until) = match grace {
        Grace::Running => return Outcome::Unchanged,
        Grace::None => (0, now),
        Grace::Set { seconds, until } => (seconds, until),
    };
    let graceful = grace != Grace::None;
    let finalizers = finalizers(kind, object, options);
    if !graceful && finalizers.is_empty() {
        return Outcome::Removed { last: None };
    }
    let mut next = object.clone();
    let first = object::deletion_time(object).is_none();
    if first && object::generation(object) > 0 {
        object::metadata_mut(&mut next).insert("generation".to_owned(), (object::generation(object) + 1).into());
    }
    object::set_finalizers(&mut next, &finalizers);
    // A deletion that only waits for finalizers keeps its start time.
    let until = if graceful || first {
        Some(until)
    } else {
        object::deletion_time(object).map(|at| at.min(now))
    };
    object::set_deletion(&mut next, until.unwrap_or(now), seconds);
    match (finalizers.is_empty(), seconds) {
        (true, 0) => Outcome::Removed { last: Some(next) },
        _ if next == *object => Outcome::Unchanged,
        _ => Outcome::Held(next),
    }
}

fn grace(kind: &'static Kind, object: &Value, options: &DeleteOptions, now: Timestamp) -> Grace {
    if !kind.graceful {
        return Grace::None;
    }
    let asked = options.grace.map(|seconds| if seconds < 0 { 1 } else { seconds });
    if let Some(until) = object::deletion_time(object) {
        return match object::deletion_grace(object) {
            None | Some(0) => Grace::None,
            Some(running) => match asked {
                Some(asked) if asked < running => shortened(until, running, asked, now),
                _ => Grace::Running,
            },
        };
    }
    let phase = object::text(object, "/status/phase");
    let spec = || {
        object
            .pointer("/spec/terminationGracePeriodSeconds")
            .and_then(Value::as_i64)
            .unwrap_or(30)
    };
    let seconds = if object::node_name(object).is_empty() || phase == "Failed" || phase == "Succeeded" {
        0
    } else {
        let seconds = asked.unwrap_or_else(spec);
        if seconds < 0 { 1 } else { seconds }
    };
    Grace::Set {
        seconds,
        until: object::shifted(now, seconds),
    }
}

fn shortened(until: Timestamp, running: i64, asked: i64, now: Timestamp) -> Grace {
    let until = object::shifted(until, asked - running);
    if until < now {
        Grace::Set {
            seconds: asked.min(1),
            until: now,
        }
    } else {
        Grace::Set { seconds: asked, until }
    }
}

/// The finalizers after applying the policy: the two special ones are recomputed, the others are kept.
fn finalizers(kind: &'static Kind, object: &Value, options: &DeleteOptions) -> Vec<String> {
    let present = object::finalizers(object);
    let mut finalizers: Vec<String> = present
        .iter()
        .filter(|name| ![ORPHAN, FOREGROUND].contains(name))
        .map(|&name| name.to_owned())
        .collect();
    finalizers.extend(special(kind, &present, options).map(str::to_owned));
    finalizers
}

fn special(kind: &'static Kind, present: &[&str], options: &DeleteOptions) -> Option<&'static str> {
    if kind.dependents == Dependents::Unsupported {
        return None;
    }
    if let Some(orphan) = options.orphan_dependents {
        return orphan.then_some(ORPHAN);
    }
    match options.policy {
        Some(Policy::Orphan) => return Some(ORPHAN),
        Some(Policy::Foreground) => return Some(FOREGROUND),
        Some(Policy::Background) => return None,
        None => {}
    }
    let kept = [ORPHAN, FOREGROUND].into_iter().find(|name| present.contains(name));
    kept.or_else(|| (kind.dependents == Dependents::Orphan).then_some(ORPHAN))
}

#[cfg(test)]
mod tests;
