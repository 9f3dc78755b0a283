//! Problems of a configuration or a node, each with its remedy.

use std::fmt;

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Kind of the problem.
    pub kind: ProblemKind,
    /// The setting, and what is wrong with it.
    pub what: String,
    /// What the user should do.
    pub remedy: String,
}

/// Kind of a problem; it decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    /// The command line is wrong.
    Usage,
    /// A file or address that a flag names is wrong, or a required flag is missing and has no default on this node yet.
    Configuration,
    /// It does not exist yet, and may appear: the node may join its cluster after the installation.
    Absent,
    /// Another process uses it, and may release it.
    Taken,
    /// A bug of this program.
    Internal,
}

// === impl Problem ===

impl Problem {
    /// The command line is wrong.
    pub fn usage(what: impl Into<String>, remedy: &str) -> Self {
        Self {
            kind: ProblemKind::Usage,
            what: what.into(),
            remedy: remedy.to_owned(),
        }
    }

    /// A file or address that a flag names is wrong, or a flag is missing. Only the first line of `what` is kept: parsers quote the
    /// source in further ones.
    pub fn configuration(what: impl Into<String>, remedy: &str) -> Self {
        let what: String = what.into();
        Self {
            kind: ProblemKind::Configuration,
            what: what.lines().next().unwrap_or_default().to_owned(),
            remedy: remedy.to_owned(),
        }
    }

    /// Another process uses it, and may release it.
    pub fn taken(what: impl Into<String>, remedy: &str) -> Self {
        Self {
            kind: ProblemKind::Taken,
            ..Self::configuration(what, remedy)
        }
    }

    /// A part of the agent has ended that never does.
    pub fn internal(what: impl Into<String>) -> Self {
        Self {
            kind: ProblemKind::Internal,
            what: what.into(),
            remedy: "start the agent again, and report this with its log".to_owned(),
        }
    }

    /// Whether it may end without a restart: only the command line of a process stays as it is.
    pub fn may_be_repaired(&self) -> bool {
        match self.kind {
            ProblemKind::Configuration | ProblemKind::Absent => true,
            ProblemKind::Usage | ProblemKind::Taken | ProblemKind::Internal => false,
        }
    }

    /// Changes the kind to [`ProblemKind::Absent`] if `absent`.
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
