//! What is wrong with a configuration or a node, and the remedy.

use std::fmt;

/// One mistake, with its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it lies.
    pub kind: ProblemKind,
    /// The thing and what is wrong with it.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// Where a mistake lies; decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    /// On the command line.
    Usage,
    /// Missing on the command line, and no default is found on this node yet.
    NotGiven,
    /// In what the command line points to.
    Configuration,
    /// What the command line points to is not there, and may come: a node joins its cluster after this was installed.
    Absent,
    /// Somebody else has what it points to, and may let go of it.
    Taken,
    /// In this program.
    Internal,
}

// === impl Problem ===

impl Problem {
    /// A mistake on the command line.
    pub fn usage(what: impl Into<String>, remedy: &str) -> Self {
        Self {
            kind: ProblemKind::Usage,
            what: what.into(),
            remedy: remedy.to_owned(),
        }
    }

    /// A required flag is missing, and no default was found.
    pub fn not_given(what: impl Into<String>, remedy: &str) -> Self {
        Self {
            kind: ProblemKind::NotGiven,
            ..Self::usage(what, remedy)
        }
    }

    /// A mistake in what the command line points to. Parsers draw the place on further lines; the first one says it.
    pub fn configuration(what: impl Into<String>, remedy: &str) -> Self {
        let what: String = what.into();
        Self {
            kind: ProblemKind::Configuration,
            what: what.lines().next().unwrap_or_default().to_owned(),
            remedy: remedy.to_owned(),
        }
    }

    /// Somebody else has it, and may let go of it.
    pub fn taken(what: impl Into<String>, remedy: &str) -> Self {
        Self {
            kind: ProblemKind::Taken,
            ..Self::configuration(what, remedy)
        }
    }

    /// The same, if what is wrong is only that something is not there.
    #[must_use]
    pub fn absent(self, absent: bool) -> Self {
        let kind = if absent { ProblemKind::Absent } else { self.kind };
        Self { kind, ..self }
    }
}

impl std::error::Error for Problem {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}
