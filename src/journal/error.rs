//! Errors of the journal and their consequences.

use std::{io, time::Duration};

use nix::errno::Errno;
use thiserror::Error;

/// The format of the journal that this agent reads and writes.
pub(super) const SCHEMA: u32 = 3;
/// Longest wait for the disk: grace periods run meanwhile.
pub(super) const DISK_TIMEOUT: Duration = Duration::from_secs(2);

/// A journal that cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("journal: {verb}: {cause}")]
pub struct JournalError {
    pub(super) verb: &'static str,
    pub(super) cause: String,
    pub(super) kind: Kind,
}

/// Consequence of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Another agent has it open. Two must not write one journal.
    InUse,
    /// Rights or paths are wrong, and a user must correct them.
    Setting,
    /// The disk is full, read-only or broken: the agent continues without the journal and retries.
    Disk,
    /// It is not a journal, or is damaged: it is quarantined and replaced.
    Damaged,
}

/// Why a journal is quarantined.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unusable {
    /// It is not a journal, or is damaged.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// A later version of this agent wrote it, with this format.
    #[error("it has format {0} of a later version of this agent, which reads format {SCHEMA}")]
    Newer(u32),
    /// Another node wrote it: the disk was cloned.
    #[error("{0}: was this disk cloned?")]
    OtherNode(String),
    /// The disk could not be read when the agent started.
    #[error("it could not be read when the agent started")]
    Unread,
}

/// Write errors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Why the journal cannot be written now.
    pub error: Option<JournalError>,
    /// Failed writes since the start.
    pub failed: u64,
}

// === impl Trouble ===

impl Trouble {
    /// The journal cannot be used from the start.
    pub(super) fn begin(&mut self, error: JournalError) {
        tracing::error!(
            %error,
            "Journal cannot be used; the agent continues without it and will retry: a restart would not continue terminations"
        );
        self.error = Some(error);
        self.failed += 1;
    }
}

// === impl JournalError ===

impl JournalError {
    /// Whether an agent must not start because of it. A full or broken disk delays no termination.
    pub fn prevents_start(&self) -> bool {
        matches!(self.kind, Kind::InUse | Kind::Setting)
    }

    /// Whether another agent has it open.
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
        let cause = format!("the disk has not answered for {} s", DISK_TIMEOUT.as_secs());
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

/// An error of the file system.
pub(super) fn io(verb: &'static str) -> impl Fn(io::Error) -> JournalError {
    move |error| JournalError::new(verb, &error, kind_of(&error))
}

/// An error of the database.
pub(super) fn failed<E: Into<redb::Error>>(verb: &'static str) -> impl Fn(E) -> JournalError {
    move |error| {
        let error = error.into();
        let kind = match &error {
            redb::Error::DatabaseAlreadyOpen => Kind::InUse,
            redb::Error::Io(error) => kind_of(error),
            redb::Error::PreviousIo | redb::Error::DatabaseClosed => Kind::Disk,
            // Tables of other types, other formats, damaged pages.
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
            assert!(of(errno).prevents_start(), "{errno}");
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
        assert!(failed("open")(redb::Error::DatabaseAlreadyOpen).prevents_start());
        assert_eq!(failed("open")(redb::Error::Corrupted("x".into())).kind, Kind::Damaged);
    }
}
