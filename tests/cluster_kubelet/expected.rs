//! Intended differences with their reasons: `docs/explanation/kubelet-differences.md` lists them.

use crate::compare::Difference;

/// An intended difference.
pub struct Expected {
    pub scenarios: &'static [&'static str],
    /// Its fields; `*` matches any text.
    pub fields: &'static [&'static str],
    /// Reason, as in the docs.
    pub situation: &'static str,
}

pub const ALL: &[Expected] = &[
    Expected {
        situation: "pod that had terminated before it was deleted",
        scenarios: &[
            "succeeded_before",
            "failed_before",
            "deadline_passed_before",
            "command_that_does_not_exist_never",
            "init_failed",
            "main_done_beside_a_sidecar",
            "evicted_exit_0",
            "evicted_exit_1",
            "evicted_and_stubborn",
            "evicted_when_one_is_done",
        ],
        fields: &["observedGeneration", "conditions[*].observedGeneration"],
    },
    Expected {
        situation: "evicted, all containers exit 0",
        scenarios: &["evicted_exit_0", "evicted_when_one_is_done"],
        fields: &[
            "phase",
            "reason",
            "message",
            "conditions[Initialized].reason",
            "conditions[Ready].reason",
            "conditions[ContainersReady].reason",
        ],
    },
    Expected {
        situation: "evicted because a volume outgrew its limit",
        scenarios: &[
            "evicted_exit_0",
            "evicted_exit_1",
            "evicted_and_stubborn",
            "evicted_when_one_is_done",
        ],
        fields: &["conditions[]", "conditions[DisruptionTarget].*"],
    },
    Expected {
        situation: "long termination message",
        scenarios: &["long_messages_of_five_in_two_bytes_each"],
        fields: &["containerStatuses[*].state.terminated.message"],
    },
    Expected {
        situation: "message for a container of which nothing is known",
        scenarios: &[
            "image_that_is_never_pulled",
            "image_that_is_never_pulled_never",
            "image_that_cannot_be_pulled",
            "image_missing_beside_one_that_runs",
            "image_missing_after_init",
            "image_missing_beside_a_sidecar",
            "settings_that_do_not_exist",
            "volume_that_does_not_come",
        ],
        fields: &["containerStatuses[*].state.terminated.message"],
    },
    Expected {
        situation: "message for a deadline that has passed",
        scenarios: &["deadline_passed_before_the_deletion_was_seen"],
        fields: &["message"],
    },
    Expected {
        situation: "active deadline that has passed",
        scenarios: &["deadline_passed_before_the_deletion_was_seen"],
        fields: &["event DeadlineExceeded of the pod"],
    },
];

impl Expected {
    /// Whether it covers this difference.
    pub fn explains(&self, scenario: &str, difference: &Difference) -> bool {
        self.scenarios.contains(&scenario) && self.fields.iter().any(|field| fits(field, &difference.field))
    }

    /// Its fields that do not differ in this scenario.
    pub fn missing(&self, scenario: &str, differences: &[Difference]) -> Vec<String> {
        if !self.scenarios.contains(&scenario) {
            return Vec::new();
        }
        let occurs = |field: &&&str| differences.iter().any(|difference| fits(field, &difference.field));
        let missing = self.fields.iter().filter(|field| !occurs(field));
        missing.map(|field| format!("{field} ({})", self.situation)).collect()
    }
}

fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, rest)) => text.strip_prefix(head).is_some_and(|tail| {
            // A star may match any text, so every position of the remainder is tried.
            tail.char_indices()
                .map(|(at, _)| at)
                .chain([tail.len()])
                .any(|at| fits(rest, &tail[at..]))
        }),
    }
}
