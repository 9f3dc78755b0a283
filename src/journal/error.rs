//! What goes wrong with a journal, and what follows from it.

use std::io;

use nix::errno::Errno;
use thiserror::Error;

use super::{PATIENCE, header::Unusable};

/// A journal that cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("journal: {verb}: {cause}")]
pub struct JournalError {
    pub(super) verb: &'static str,
    pub(super) cause: String,
    pub(super) kind: Kind,
}

/// What follows from an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Another agent has it open: two must not write one journal.
    InUse,
    /// Rights or paths are wrong, and only a person can set them right.
    Setting,
    /// The disk is full, read-only or broken: the work goes on without it, and it is tried again.
    Disk,
    /// What is there is no journal, or no longer one: it is quarantined, and another is made.
    Damaged,
}

// === impl JournalError ===

impl JournalError {
    /// Whether an agent must not start with it. A disk that takes or gives nothing keeps no pod from ending.
    pub fn forbids_the_start(&self) -> bool {
        matches!(self.kind, Kind::InUse | Kind::Setting)
    }

    /// Whether that is only because another agent has it.
    pub fn is_in_use(&self) -> bool {
        self.kind == Kind::InUse
    }

    pub(super) fn new(verb: &'static str, cause: &(impl ToString + ?Sized), kind: Kind) -> Self {
        Self {
            verb,
            cause: cause.to_string(),
            kind,
        }
    }

    pub(super) fn stopped() -> Self {
        Self::new("write", "the writer has stopped", Kind::Disk)
    }

    pub(super) fn hangs() -> Self {
        let cause = format!("the disk has not answered for {} s", PATIENCE.as_secs());
        Self::new("write", &cause, Kind::Disk)
    }

    /// The library panicked: it checks little of what it reads.
    pub(super) fn damaged() -> Self {
        Self::new("read", "the file is damaged", Kind::Damaged)
    }
}

impl From<JournalError> for Unusable {
    fn from(error: JournalError) -> Self {
        Self::Damaged(error.cause)
    }
}

/// Of the file system.
pub(super) fn io(verb: &'static str) -> impl Fn(io::Error) -> JournalError {
    move |error| JournalError::new(verb, &error, kind_of(&error))
}

/// Of the database.
pub(super) fn failed<E: Into<redb::Error>>(verb: &'static str) -> impl Fn(E) -> JournalError {
    move |error| {
        let error = error.into();
        let kind = match &error {
            redb::Error::DatabaseAlreadyOpen => Kind::InUse,
            redb::Error::Io(error) => kind_of(error),
            redb::Error::PreviousIo | redb::Error::DatabaseClosed => Kind::Disk,
            // Tables of other types, other formats, broken pages.
            _ => Kind::Damaged,
        };
        JournalError::new(verb, &error, kind)
    }
}

fn kind_of(error: &io::Error) -> Kind {
    if matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof
    ) {
        return Kind::Damaged;
    }
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EACCES | Errno::EPERM | Errno::ENOTDIR | Errno::ELOOP | Errno::ENAMETOOLONG) => Kind::Setting,
        _ => Kind::Disk,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_problems_that_a_user_must_correct_and_another_agent_prevent_the_start() {
        let of = |errno: Errno| io("open")(errno.into());
        for errno in [Errno::EACCES, Errno::EPERM, Errno::ENOTDIR, Errno::ELOOP] {
            assert!(of(errno).forbids_the_start(), "{errno}");
        }
        for errno in [
            Errno::ENOSPC,
            Errno::EDQUOT,
            Errno::EROFS,
            Errno::EIO,
            Errno::ESTALE,
            Errno::ENOMEM,
        ] {
            assert_eq!(of(errno).kind, Kind::Disk, "{errno}");
        }
        assert!(failed("open")(redb::Error::DatabaseAlreadyOpen).forbids_the_start());
        assert_eq!(failed("open")(redb::Error::Corrupted("x".into())).kind, Kind::Damaged);
    }
}
