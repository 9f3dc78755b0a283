//! The rows of `check`.

use super::item::Item;
use crate::model::problem::{Problem, ProblemKind};

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The checked item.
    pub item: Item,
    /// The result.
    pub verdict: Verdict,
    /// The observation.
    pub seen: String,
    /// The remedy; empty if none is needed.
    pub remedy: String,
}

/// The result of a check. Failures differ by their exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Does not apply here.
    Skipped,
    /// Works, but needs attention.
    Warning,
    /// Wrong on the command line.
    Usage,
    /// A required flag is missing, and no default is found on this node yet.
    NotGiven,
    /// Configured wrongly.
    Configuration,
    /// Cannot be reached.
    Unreachable,
    /// Any other failure.
    Failed,
}

// === impl Verdict ===

impl Verdict {
    /// Whether the agent cannot work.
    pub fn is_failure(self) -> bool {
        match self {
            Self::Ok | Self::Skipped | Self::Warning => false,
            Self::Usage | Self::NotGiven | Self::Configuration | Self::Unreachable | Self::Failed => true,
        }
    }
}

// === impl Row ===

impl Row {
    #[allow(clippy::needless_pass_by_value, reason = "it takes errors and texts")]
    pub(crate) fn new(item: Item, verdict: Verdict, seen: impl ToString, remedy: &str) -> Self {
        Self {
            item,
            verdict,
            seen: seen.to_string(),
            remedy: remedy.to_owned(),
        }
    }

    pub(super) fn ok(item: Item, seen: impl ToString) -> Self {
        Self::new(item, Verdict::Ok, seen, "")
    }

    /// An item that does not apply here, and why.
    pub(super) fn skipped(item: Item, why: impl ToString) -> Self {
        Self::new(item, Verdict::Skipped, why, "")
    }

    pub(super) fn from_problem(item: Item, problem: &Problem) -> Self {
        let verdict = match problem.kind {
            ProblemKind::Usage => Verdict::Usage,
            ProblemKind::NotGiven => Verdict::NotGiven,
            ProblemKind::Configuration | ProblemKind::Absent => Verdict::Configuration,
            ProblemKind::Taken | ProblemKind::Internal => Verdict::Failed,
        };
        Self::new(item, verdict, &problem.what, &problem.remedy)
    }
}

impl From<Problem> for Row {
    fn from(problem: Problem) -> Self {
        Self::from_problem(Item::SETTINGS, &problem)
    }
}

#[cfg(test)]
impl Row {
    /// Asserts that a failure has a remedy that begins with a verb and names an object.
    pub(super) fn assert_helps(&self) {
        const VERBS: [&str; 18] = [
            "apply",
            "approve",
            "check",
            "compare",
            "correct",
            "free",
            "mount",
            "no action is needed:",
            "pass",
            "read",
            "renew",
            "restart",
            "run",
            "see",
            "set",
            "start",
            "stop",
            "use",
        ];
        const OBJECTS: [&str; 6] = ["--", "`", "/", "root", "disk", "no action"];
        if matches!(self.verdict, Verdict::Ok | Verdict::Skipped) {
            assert_eq!(self.remedy, "", "{self:?}");
            return;
        }
        let begins = |verb: &str| {
            let object = self.remedy.strip_prefix(verb);
            object.is_some_and(|object| object.starts_with(' '))
        };
        assert!(VERBS.into_iter().any(begins), "no verb: {self:?}");
        assert!(
            OBJECTS
                .iter()
                .any(|object| self.remedy.contains(object) || self.seen.contains(object)),
            "no object: {self:?}"
        );
        assert!(!self.seen.is_empty(), "{self:?}");
    }
}
