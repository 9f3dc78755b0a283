//! Formats the list of terminations.

use jiff::Timestamp;

use super::precise;
use crate::{
    clock::between,
    model::trace::Stage,
    ops::{admin::timelines::TimelineEntry, output::table},
    words::age,
};

/// Formats the list, the latest termination last. `namespace` selects those of one namespace.
pub fn list(entries: &[TimelineEntry], namespace: Option<&str>, is_wide: bool, now: Timestamp) -> String {
    let selected = |entry: &&TimelineEntry| namespace.is_none_or(|namespace| entry.namespace == namespace);
    let mut entries: Vec<&TimelineEntry> = entries.iter().filter(selected).collect();
    if entries.is_empty() {
        return "No termination is known; the agent remembers the last 256 since its start.\n".to_owned();
    }
    entries.sort_by_key(|entry| entry.began);
    let cells = |entry: &&TimelineEntry| {
        [
            entry.namespace.clone(),
            entry.name.clone(),
            state(entry).to_owned(),
            precise(entry.elapsed_ms),
            format!("{}s", entry.grace_seconds),
            age(between(entry.began, now)),
        ]
    };
    let header = ["NAMESPACE", "NAME", "STATE", "DURATION", "GRACE", "AGE"];
    if !is_wide {
        return table(header, &entries.iter().map(cells).collect::<Vec<_>>());
    }
    let wide = |entry: &&TimelineEntry| {
        let [namespace, name, state, duration, grace, age] = cells(entry);
        let (attempts, phase) = (entry.attempts.to_string(), entry.phase.clone());
        let phase = phase.unwrap_or_else(|| "-".to_owned());
        [
            namespace,
            name,
            state,
            duration,
            grace,
            age,
            attempts,
            phase,
            entry.uid.clone(),
            entry.cause.to_string(),
        ]
    };
    let [namespace, name, state, duration, grace, age] = header;
    let header = [
        namespace, name, state, duration, grace, age, "ATTEMPTS", "PHASE", "UID", "CAUSE",
    ];
    table(header, &entries.iter().map(wide).collect::<Vec<_>>())
}

fn state(entry: &TimelineEntry) -> &'static str {
    match entry.stage {
        _ if entry.awaiting_deletion => "awaiting-deletion",
        Stage::Terminating => "terminating",
        Stage::Terminated => "terminated",
        Stage::Deleted => "deleted",
        Stage::Finished => "finished",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::trace::Trace;

    #[test]
    fn terminations_are_listed_by_their_beginning() {
        let entry = |name: &str, minute: &str, stage| {
            TimelineEntry::from(Trace {
                name: name.to_owned(),
                began: format!("2026-01-02T03:{minute}:00Z").parse().unwrap(),
                stage,
                elapsed_ms: 2_340,
                ..Trace::sample()
            })
        };
        let entries = [entry("b", "20", Stage::Terminating), entry("a", "10", Stage::Finished)];
        let now = "2026-01-02T03:20:30Z".parse().unwrap();
        assert_eq!(
            list(&entries, None, false, now),
            "NAMESPACE   NAME   STATE         DURATION   GRACE   AGE\n\
             default     a      finished      2.34s      30s     10m\n\
             default     b      terminating   2.34s      30s     30s\n"
        );
        let wide = list(&entries, Some("default"), true, now);
        assert!(wide.contains("1234   it was deleted"), "{wide}");
        assert!(list(&entries, Some("other"), false, now).starts_with("No termination is known"));
    }
}
