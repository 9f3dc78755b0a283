//! Files in a directory that is removed only if it is empty.

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use crate::words::some_of;

/// Files in a directory that is removed only if it is empty, such as the mount point of a volume. They may be data that was written
/// while the volume was not mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftFiles {
    dir: PathBuf,
    names: Vec<OsString>,
}

// === impl LeftFiles ===

impl LeftFiles {
    /// The files with these names in the directory `dir`; `None` without any.
    pub fn new(dir: &Path, mut names: Vec<OsString>) -> Option<Self> {
        names.sort();
        (!names.is_empty()).then(|| Self {
            dir: dir.to_owned(),
            names,
        })
    }
}

impl fmt::Display for LeftFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = some_of(self.names.iter().map(|name| format!("{name:?}")));
        let dir = &self.dir;
        write!(
            f,
            "nothing is mounted there, and it is not empty: {names}; these files may have been written while the volume was not \
             mounted, and stay: move them away, such as by: mv {dir:?} /var/tmp/"
        )
    }
}
