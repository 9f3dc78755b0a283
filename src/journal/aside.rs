//! Files that are no use as a journal, kept beside it: never deleted, never written over, said until somebody takes
//! them away.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{FILE, JournalError, error, header::Foreign, whose};

/// A disk that damages every journal must not be filled with them. Then the agent goes on from memory.
const MOST: usize = 32;

/// Why something was kept aside; the name of the file says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// It is no journal, or no longer one.
    Damaged(String),
    /// A later version of this agent wrote it, in this format.
    Newer(u32),
    /// Another machine wrote it.
    OtherMachine(String),
    /// It could not be read when the agent started, and was never looked into.
    Unread,
    /// A copy from before the database repaired it.
    Repaired,
    /// Rows of it that could not be read.
    Rows,
}

/// Something that was kept aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aside {
    /// Where it is now.
    pub path: PathBuf,
    /// Why, in words.
    pub why: &'static str,
}

/// The words in names, and what they say to people.
const WORDS: [(&str, &str); 6] = [
    ("damaged", "it was damaged"),
    ("newer", "a later version of this agent wrote it"),
    ("other-machine", "another machine wrote it"),
    ("unread", "it could not be read when the agent started"),
    ("repaired", "it is a copy from before the journal was repaired"),
    ("rows", "it holds entries that could not be read"),
];

// === impl Reason ===

impl Reason {
    fn word(&self) -> &'static str {
        match self {
            Self::Damaged(_) => "damaged",
            Self::Newer(_) => "newer",
            Self::OtherMachine(_) => "other-machine",
            Self::Unread => "unread",
            Self::Repaired => "repaired",
            Self::Rows => "rows",
        }
    }

    /// What is wrong, in a sentence without its subject.
    pub fn told(&self) -> String {
        match self {
            Self::Damaged(cause) => format!("it is damaged: {cause}"),
            Self::Newer(schema) => {
                format!(
                    "it has format {schema} of a later version of this agent, which reads formats up to {}",
                    super::header::SCHEMA
                )
            }
            Self::OtherMachine(why) => format!("{why}: was this disk cloned?"),
            Self::Unread => "it could not be read when the agent started".to_owned(),
            Self::Repaired => "the last that was written may be lost".to_owned(),
            Self::Rows => "entries could not be read".to_owned(),
        }
    }
}

impl From<Foreign> for Reason {
    fn from(foreign: Foreign) -> Self {
        match foreign {
            Foreign::Newer(schema) => Self::Newer(schema),
            Foreign::OtherMachine(why) => Self::OtherMachine(why),
            Foreign::Unreadable(cause) => Self::Damaged(cause),
        }
    }
}

// === impl Aside ===

impl Aside {
    /// For people.
    pub fn told(&self) -> String {
        format!("kept as {}, because {}", self.path.display(), self.why)
    }
}

/// All that is kept aside in `dir`; none if that cannot be seen.
pub(super) fn list(dir: &Path) -> Vec<Aside> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let of = |file| name.strip_prefix(file)?.strip_prefix('.');
            let rest = of(FILE).or_else(|| of(whose::FILE))?;
            let (_, why) = WORDS
                .iter()
                .find(|(word, _)| rest.strip_prefix(word).is_some_and(|rest| rest.starts_with('-')))?;
            Some(Aside {
                path: entry.path(),
                why,
            })
        })
        .collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Gives what is at `path` another name, under which it stays. A file keeps its old name, too, until another takes its
/// place in one step: a crash in between leaves no moment without a journal.
pub(super) fn keep(path: &Path, reason: &Reason) -> Result<PathBuf, JournalError> {
    named(path, reason, |to| match fs::hard_link(path, to) {
        // A directory, or a file system without links.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Ok(renameat_with(CWD, path, CWD, to, RenameFlags::NOREPLACE)?)
        }
        linked => linked,
    })
}

/// Writes a new file beside the journal.
pub(super) fn write(path: &Path, reason: &Reason, bytes: &[u8]) -> Result<PathBuf, JournalError> {
    named(path, reason, |to| {
        let written = super::file::create(to).and_then(|mut file| {
            io::Write::write_all(&mut file, bytes)?;
            file.sync_all()
        });
        if written
            .as_ref()
            .is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists)
        {
            // Half of a copy helps nobody, and its file is ours.
            fs::remove_file(to).ok();
        }
        written
    })
}

fn named(path: &Path, reason: &Reason, make: impl Fn(&Path) -> io::Result<()>) -> Result<PathBuf, JournalError> {
    let stamp = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let dir = path.parent().unwrap_or(path);
    if list(dir).len() >= MOST {
        let full = format!(
            "{MOST} files are kept aside in {} already: take them away",
            dir.display()
        );
        return Err(JournalError::new("keep aside", &full, error::Kind::Disk));
    }
    let mut number = 0;
    loop {
        number += 1;
        let mut name = OsString::from(path);
        name.push(format!(".{}-{stamp}", reason.word()));
        if number > 1 {
            name.push(format!("-{number}"));
        }
        let to = PathBuf::from(name);
        match make(&to) {
            Ok(()) => return Ok(to),
            // No more of these than there are files kept aside.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error::io("keep aside")(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_over_however_often_and_all_is_listed_with_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for text in ["first", "second", "third"] {
            // As the next journal takes its place.
            let new = dir.path().join("new");
            fs::write(&new, text).unwrap();
            fs::rename(&new, &path).unwrap();
            keep(&path, &Reason::Newer(9)).unwrap();
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        keep(&path, &Reason::Damaged("x".to_owned())).unwrap();
        write(&path, &Reason::Rows, b"rows").unwrap();
        fs::write(dir.path().join("journal.redb.bak"), "somebody's own").unwrap();
        let found = list(dir.path());
        let mut texts: Vec<_> = found
            .iter()
            .map(|aside| fs::read_to_string(&aside.path).unwrap_or_default())
            .collect();
        texts.sort();
        assert_eq!(texts, ["", "first", "rows", "second", "third"]);
        let count = |word: &str| found.iter().filter(|aside| aside.told().contains(word)).count();
        assert_eq!(
            (count("later version"), count("it was damaged"), count("entries")),
            (3, 1, 1)
        );
    }

    #[test]
    fn a_disk_is_not_filled_with_what_is_kept_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        fs::write(&path, "damaged").unwrap();
        let reason = Reason::Damaged(String::new());
        for _ in 0..MOST {
            keep(&path, &reason).unwrap();
        }
        let error = keep(&path, &reason).unwrap_err();
        assert!(
            !error.forbids_the_start() && error.to_string().contains("take them away"),
            "{error}"
        );
        assert_eq!(
            (list(dir.path()).len(), fs::read_to_string(&path).unwrap().as_str()),
            (MOST, "damaged")
        );
    }

    #[test]
    fn every_reason_has_its_word() {
        for reason in [
            Reason::Damaged(String::new()),
            Reason::Newer(1),
            Reason::OtherMachine(String::new()),
            Reason::Unread,
            Reason::Repaired,
            Reason::Rows,
        ] {
            let known = WORDS.iter().filter(|(word, _)| *word == reason.word()).count();
            assert_eq!(known, 1, "{reason:?}");
        }
    }
}
