//! The rows of `check`, and their table.

use std::fmt::Write as _;

use crate::model::{
    foreign::ForeignText,
    problem::{Problem, ProblemKind},
};

/// sysexits.h `EX_USAGE`.
const USAGE: u8 = 64;
/// sysexits.h `EX_UNAVAILABLE`.
const UNAVAILABLE: u8 = 69;
/// sysexits.h `EX_CONFIG`.
const CONFIGURATION: u8 = 78;

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The checked item.
    pub what: String,
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
    /// Works, but needs attention.
    Warning,
    /// Wrong on the command line.
    Usage,
    /// Configured wrongly.
    Configuration,
    /// Cannot be reached.
    Unreachable,
    /// Any other failure.
    Failed,
}

/// Formats the rows as a table.
pub fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.what.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for row in rows {
        // Writing to a String cannot fail.
        let (seen, remedy) = (ForeignText::new(&row.seen), ForeignText::new(&row.remedy));
        let _ = writeln!(out, "{:4}  {:width$}  {seen}", row.verdict.word(), row.what);
        if row.verdict != Verdict::Ok {
            let _ = writeln!(out, "      {:width$}  → {remedy}", "");
        }
    }
    out
}

/// The exit code of the gravest failure: usage, configuration, unreachable, other.
pub fn exit_code(rows: &[Row]) -> u8 {
    let any = |verdict| rows.iter().any(|row| row.verdict == verdict);
    if any(Verdict::Usage) {
        USAGE
    } else if any(Verdict::Configuration) {
        CONFIGURATION
    } else if any(Verdict::Unreachable) {
        UNAVAILABLE
    } else {
        u8::from(any(Verdict::Failed))
    }
}

// === impl Verdict ===

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "note",
            Self::Usage | Self::Configuration | Self::Unreachable | Self::Failed => "FAIL",
        }
    }
}

// === impl Row ===

impl Row {
    #[allow(clippy::needless_pass_by_value, reason = "it takes errors and texts")]
    pub(crate) fn new(what: &str, verdict: Verdict, seen: impl ToString, remedy: &str) -> Self {
        Self {
            what: what.to_owned(),
            verdict,
            seen: seen.to_string(),
            remedy: remedy.to_owned(),
        }
    }

    pub(super) fn ok(what: &str, seen: impl ToString) -> Self {
        Self::new(what, Verdict::Ok, seen, "")
    }

    pub(super) fn from_problem(what: &str, problem: &Problem) -> Self {
        let verdict = match problem.kind {
            ProblemKind::Usage | ProblemKind::NotGiven => Verdict::Usage,
            ProblemKind::Configuration | ProblemKind::Absent => Verdict::Configuration,
            ProblemKind::Taken | ProblemKind::Internal => Verdict::Failed,
        };
        Self::new(what, verdict, &problem.what, &problem.remedy)
    }
}

impl From<Problem> for Row {
    fn from(problem: Problem) -> Self {
        Self::from_problem("configuration", &problem)
    }
}

#[cfg(test)]
impl Row {
    /// Asserts that a failure has a remedy that begins with a verb and names an object.
    pub(super) fn assert_helps(&self) {
        const VERBS: [&str; 16] = [
            "apply",
            "check",
            "correct",
            "free",
            "give",
            "look",
            "mount",
            "name",
            "nothing needs to be done:",
            "renew",
            "run",
            "see",
            "set",
            "start",
            "stop",
            "use",
        ];
        const OBJECTS: [&str; 6] = ["--", "`", "/", "root", "disk", "nothing needs"];
        if self.verdict == Verdict::Ok {
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
        assert!(!self.what.is_empty() && !self.seen.is_empty(), "{self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gravest_failure_determines_the_exit_code() {
        let rows = |verdicts: &[Verdict]| {
            verdicts
                .iter()
                .map(|verdict| Row::new("x", *verdict, "", ""))
                .collect::<Vec<_>>()
        };
        let cases: [(&[Verdict], u8); 7] = [
            (&[], 0),
            (&[Verdict::Ok, Verdict::Warning], 0),
            (&[Verdict::Failed, Verdict::Ok], 1),
            (&[Verdict::Failed, Verdict::Unreachable], 69),
            (&[Verdict::Unreachable, Verdict::Configuration], 78),
            (&[Verdict::Failed, Verdict::Configuration], 78),
            (&[Verdict::Configuration, Verdict::Usage], 64),
        ];
        for (verdicts, code) in cases {
            assert_eq!(exit_code(&rows(verdicts)), code, "{verdicts:?}");
        }
    }

    #[test]
    fn failure_shows_its_remedy_below() {
        let table = table(&[
            Row::ok("runtime", "containerd 1"),
            Row::new("Node", Verdict::Failed, "none", "do this"),
        ]);
        assert_eq!(
            table,
            "ok    runtime  containerd 1\nFAIL  Node     none\n               → do this\n"
        );
    }
}
