//! The text of the mount table, and the kernel's word on whether it is still true.

use std::{
    fs,
    io::{self, Read as _, Seek as _},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        statfs::{PROC_SUPER_MAGIC, fstatfs},
        utsname::uname,
    },
};

/// From this version on the kernel leaves out no mount when others go while it writes the table.
const WHOLE_SINCE: (u32, u32) = (5, 8);
/// How often an older kernel is asked for a table that stands still.
const READS: usize = 10;

/// Where the mount table is read from.
///
/// An open mountinfo of the kernel's tells whoever polls it whether the table has changed since the last poll. That is
/// remembered with the descriptor, so this one is shared with nobody.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    kernel: Option<fs::File>,
    /// The table was read after the last change that the kernel told of.
    read: bool,
}

// === impl Source ===

impl Source {
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            kernel: None,
            read: false,
        }
    }

    /// Whether the text that was read last is still true; never of an ordinary file, which tells nothing.
    pub fn is_unchanged(&mut self) -> bool {
        self.read = self.read && self.kernel.as_ref().is_some_and(|file| !has_changed(file));
        self.read
    }

    /// What was read last is worth nothing.
    pub fn forget(&mut self) {
        self.read = false;
    }

    /// The text as it is now.
    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        self.read = false;
        if self.kernel.is_none() {
            self.kernel = open_kernels(&self.path)?;
        }
        let Some(file) = &self.kernel else {
            return fs::read(&self.path);
        };
        // Whatever changes from here on is told by the next poll.
        has_changed(file);
        let read = if reads_are_whole() {
            read_from_start(file)
        } else {
            until_it_stands_still(|| read_from_start(file), || has_changed(file))
        };
        match &read {
            Ok(_) => self.read = true,
            Err(_) => self.kernel = None,
        }
        read
    }
}

/// Opens the mount table; nothing if it is none of the kernel's.
pub(super) fn open_kernels(path: &Path) -> io::Result<Option<fs::File>> {
    let file = fs::File::open(path)?;
    Ok((fstatfs(&file)?.filesystem_type() == PROC_SUPER_MAGIC).then_some(file))
}

/// Whether the table has changed since this was asked last, or since the file was opened. In doubt it has.
fn has_changed(file: &fs::File) -> bool {
    let mut asked = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
    let told = poll(&mut asked, PollTimeout::ZERO);
    told.is_err() || asked[0].any().unwrap_or(true)
}

fn read_from_start(mut file: &fs::File) -> io::Result<Vec<u8>> {
    file.rewind()?;
    // The kernel writes a page at a time, whatever room there is.
    let mut text = Vec::with_capacity(64 * 1024);
    file.read_to_end(&mut text)?;
    Ok(text)
}

/// Reads until nothing changed meanwhile, or two reads agree.
fn until_it_stands_still(
    mut read: impl FnMut() -> io::Result<Vec<u8>>,
    mut has_changed: impl FnMut() -> bool,
) -> io::Result<Vec<u8>> {
    let mut last = None;
    for _ in 0..READS {
        let text = read()?;
        if !has_changed() || last.as_ref() == Some(&text) {
            return Ok(text);
        }
        last = Some(text);
    }
    Err(Errno::EAGAIN.into())
}

fn reads_are_whole() -> bool {
    let version = uname().ok().and_then(|uname| version(uname.release().to_str()?));
    version.is_some_and(|version| version >= WHOLE_SINCE)
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(reads: &[&str], changed: &[bool]) -> Option<String> {
        let (mut reads, mut changed) = (reads.iter(), changed.iter());
        let text = until_it_stands_still(
            || Ok(reads.next().unwrap().as_bytes().to_vec()),
            || *changed.next().unwrap(),
        );
        text.ok().map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn an_older_kernel_is_asked_until_nothing_changed_or_two_reads_agree() {
        assert_eq!(settled(&["a"], &[false]).as_deref(), Some("a"));
        assert_eq!(settled(&["a", "b"], &[true, false]).as_deref(), Some("b"));
        assert_eq!(settled(&["a", "b", "b"], &[true, true, true]).as_deref(), Some("b"));
    }

    #[test]
    fn a_table_that_never_stands_still_is_an_error_and_not_half_a_table() {
        let texts: Vec<String> = (0..READS).map(|at| at.to_string()).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        assert_eq!(settled(&texts, &[true; READS]), None);
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(version("6.18.44-cloud"), Some((6, 18)));
        assert_eq!(version("5.10"), Some((5, 10)));
        assert!(version("5.10").unwrap() > WHOLE_SINCE && version("4.18.0-553.el8").unwrap() < WHOLE_SINCE);
        assert_eq!(version("unknown"), None);
    }

    #[test]
    fn an_ordinary_file_is_never_called_unchanged() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut source = Source::new(file.path().to_owned());
        source.read().unwrap();
        assert!(!source.is_unchanged());
    }
}
