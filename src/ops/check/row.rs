//! The rows of `check`.

use std::path::Path;

use serde::Serialize;

use super::item::{Group, Item};
use crate::{
    DOCS_URL, INSTALLED_DOCS,
    model::problem::{Problem, ProblemKind},
};

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "ReportRow"))]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The row ID. It is stable. Several problems of one item have a row each.
    pub id: &'static str,
    /// The group of the item.
    pub group: Group,
    /// Name of the item.
    pub name: &'static str,
    /// The result.
    #[serde(rename = "result")]
    pub verdict: Verdict,
    /// The observation.
    pub message: String,
    /// What the user should do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
    /// Its section in the runbook.
    pub see: String,
}

/// The result of a check. A failure has an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Does not apply here; the message says why.
    Skipped,
    /// Works, but needs attention.
    Warning,
    /// Prevents the agent from working.
    #[cfg_attr(test, schemars(transform = tests::without_exit_code))]
    Failed(#[serde(skip)] u8),
}

/// sysexits.h `EX_USAGE`.
pub const USAGE: u8 = 64;
/// sysexits.h `EX_UNAVAILABLE`.
pub const UNAVAILABLE: u8 = 69;
/// sysexits.h `EX_CONFIG`.
pub const CONFIGURATION: u8 = 78;
/// Any other failure.
pub const FAILURE: u8 = 1;

/// The exit code for a problem of this kind.
pub fn exit_code(kind: ProblemKind) -> u8 {
    match kind {
        ProblemKind::Usage => USAGE,
        ProblemKind::Configuration | ProblemKind::Absent => CONFIGURATION,
        ProblemKind::Taken | ProblemKind::Internal => FAILURE,
    }
}

/// The exit code of the most severe of these failures; 0 without any.
pub fn most_severe(codes: &[u8]) -> u8 {
    let mut by_severity = [USAGE, CONFIGURATION, UNAVAILABLE, FAILURE].into_iter();
    by_severity.find(|code| codes.contains(code)).unwrap_or(0)
}

// === impl Row ===

impl Row {
    #[allow(clippy::needless_pass_by_value, reason = "it takes errors and texts")]
    pub(crate) fn new(item: Item, verdict: Verdict, message: impl ToString, remedy: &str) -> Self {
        let Item { group, id, name } = item;
        Self {
            id,
            group,
            name,
            verdict,
            message: message.to_string(),
            remedy: remedy.to_owned(),
            see: format!("{}/how-to/runbook.md#check-{id}", docs(Path::new(INSTALLED_DOCS))),
        }
    }

    pub(super) fn ok(item: Item, message: impl ToString) -> Self {
        Self::new(item, Verdict::Ok, message, "")
    }

    /// An item that does not apply here, and why.
    pub(super) fn skipped(item: Item, why: impl ToString) -> Self {
        Self::new(item, Verdict::Skipped, why, "")
    }

    pub(super) fn from_problem(item: Item, problem: &Problem) -> Self {
        let verdict = Verdict::Failed(exit_code(problem.kind));
        Self::new(item, verdict, &problem.what, &problem.remedy)
    }

    /// The same row with another result.
    pub(super) fn with_verdict(self, verdict: Verdict) -> Self {
        Self { verdict, ..self }
    }

    /// The exit code of a failure.
    pub(super) fn exit_code(&self) -> Option<u8> {
        match self.verdict {
            Verdict::Ok | Verdict::Skipped | Verdict::Warning => None,
            Verdict::Failed(code) => Some(code),
        }
    }
}

/// Where a user of this node finds the documentation.
pub(super) fn docs(installed: &Path) -> &str {
    match installed.to_str() {
        Some(path) if installed.is_dir() => path,
        _ => DOCS_URL,
    }
}

#[cfg(test)]
impl Row {
    /// Asserts that a failure, and nothing else, has a remedy.
    pub(super) fn assert_helps(&self) {
        let is_fine = matches!(self.verdict, Verdict::Ok | Verdict::Skipped);
        assert_eq!(self.remedy.split(' ').count() < 3, is_fine, "{self:?}");
        assert!(!self.message.is_empty(), "{self:?}");
    }
}

#[cfg(test)]
mod tests {
    /// The schema of a failure: serde writes its name alone.
    pub fn without_exit_code(schema: &mut schemars::Schema) {
        for key in ["properties", "additionalProperties", "required"] {
            schema.remove(key);
        }
        schema.insert("type".to_owned(), "string".into());
        schema.insert("const".to_owned(), "failed".into());
    }
}
