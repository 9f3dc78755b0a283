//! Journals that cannot be used, kept beside the one in use as `journal.redb.bad-TIME`. They are never deleted or written
//! over, and are reported until a user removes them.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::{
    error::{self, JournalError},
    file::FILE,
};

/// A disk that damages every journal must not be filled with them: the agent then continues without a journal.
const LIMIT: usize = 32;
const SUFFIX: &str = ".bad-";

/// The quarantined journals in `dir`; none if it cannot be read.
pub fn list(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let is_bad = |name: &str| name.strip_prefix(FILE).is_some_and(|rest| rest.starts_with(SUFFIX));
    let entries = entries.flatten();
    let bad = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_bad));
    let mut found: Vec<_> = bad.map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// Quarantines the file or directory at `path` and returns its new path. A file keeps its old name, too, until a new journal
/// replaces it in one step: after a crash in between, the next start still finds it and does the same again.
pub(super) fn add(path: &Path) -> Result<PathBuf, JournalError> {
    let dir = path.parent().unwrap_or(path);
    if list(dir).len() >= LIMIT {
        let full = format!("{} holds {LIMIT} quarantined journals: remove them", dir.display());
        return Err(JournalError::new("quarantine", &full, error::Kind::Disk));
    }
    let now = Timestamp::now();
    let mut to = OsString::from(path);
    to.push(format!(
        "{SUFFIX}{}.{:09}Z",
        now.strftime("%Y%m%dT%H%M%S"),
        now.subsec_nanosecond()
    ));
    let to = PathBuf::from(to);
    let added = match fs::hard_link(path, &to) {
        // A directory, or a file system without links.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            renameat2(AT_FDCWD, path, AT_FDCWD, &to, RenameFlags::RENAME_NOREPLACE).map_err(io::Error::from)
        }
        linked => linked,
    };
    added.map(|()| to).map_err(error::io("quarantine"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarantined_journals_are_never_overwritten_and_all_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for text in ["first", "second", "third"] {
            // As the next journal replaces it.
            let new = dir.path().join("new");
            fs::write(&new, text).unwrap();
            fs::rename(&new, &path).unwrap();
            add(&path).unwrap();
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        add(&path).unwrap();
        fs::write(dir.path().join("journal.redb.bak"), "a user's own").unwrap();
        let found = list(dir.path());
        let mut texts: Vec<_> = found
            .iter()
            .map(|path| fs::read_to_string(path).unwrap_or_default())
            .collect();
        texts.sort();
        assert_eq!(texts, ["", "first", "second", "third"]);
    }

    #[test]
    fn number_of_quarantined_journals_is_limited() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        fs::write(&path, "damaged").unwrap();
        for _ in 0..LIMIT {
            add(&path).unwrap();
        }
        let error = add(&path).unwrap_err();
        assert!(
            !error.prevents_start() && error.to_string().contains("remove them"),
            "{error}"
        );
        assert_eq!(
            (list(dir.path()).len(), fs::read_to_string(&path).unwrap().as_str()),
            (LIMIT, "damaged")
        );
    }
}
