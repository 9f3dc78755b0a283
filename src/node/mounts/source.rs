//! The text of the mount table, and whether it has changed.

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

/// Since this version the kernel skips no mount when others are removed during a read.
const CONSISTENT_SINCE: (u32, u32) = (5, 8);
/// How often an older kernel is read until the table is stable.
const MAX_READS: usize = 10;

/// Source of the mount table.
///
/// Polling the kernel's open mountinfo reports whether the table has changed since the last poll. That state belongs to
/// the descriptor, so this one is not shared.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    kernel: Option<fs::File>,
    /// The table was read after the last reported change.
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

    /// Whether the last text is still current. Never for an ordinary file, which reports nothing.
    pub fn is_unchanged(&mut self) -> bool {
        self.read = self.read && self.kernel.as_ref().is_some_and(|file| !has_changed(file));
        self.read
    }

    /// Discards the last text.
    pub fn invalidate(&mut self) {
        self.read = false;
    }

    /// Reads the table in another way. The next poll reports what changes from here on.
    pub fn read_by<T>(&mut self, read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.read = false;
        self.open()?;
        let table = read()?;
        self.read = true;
        Ok(table)
    }

    /// Opens the kernel's table, if it is not open. Changes from here on are reported by the next poll.
    fn open(&mut self) -> io::Result<Option<&fs::File>> {
        if self.kernel.is_none() {
            self.kernel = open_kernels(&self.path)?;
        }
        self.kernel.as_ref().map(has_changed);
        Ok(self.kernel.as_ref())
    }

    /// The current text.
    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        self.read = false;
        let Some(file) = self.open()? else {
            return fs::read(&self.path);
        };
        let read = if reads_are_consistent() {
            read_from_start(file)
        } else {
            read_until_stable(|| read_from_start(file), || has_changed(file))
        };
        match &read {
            Ok(_) => self.read = true,
            Err(_) => self.kernel = None,
        }
        read
    }
}

/// Opens the mount table; `None` if it is not the kernel's.
pub(super) fn open_kernels(path: &Path) -> io::Result<Option<fs::File>> {
    let file = fs::File::open(path)?;
    Ok((fstatfs(&file)?.filesystem_type() == PROC_SUPER_MAGIC).then_some(file))
}

/// Whether the table has changed since the last call, or since the file was opened. True if unknown.
fn has_changed(file: &fs::File) -> bool {
    is_ready(file, PollFlags::POLLPRI)
}

/// Whether the kernel reports one of these for the file now. True if unknown.
pub(super) fn is_ready(file: &fs::File, what: PollFlags) -> bool {
    let mut asked = [PollFd::new(file.as_fd(), what)];
    let polled = poll(&mut asked, PollTimeout::ZERO);
    polled.is_err() || asked[0].any().unwrap_or(true)
}

fn read_from_start(mut file: &fs::File) -> io::Result<Vec<u8>> {
    file.rewind()?;
    // The kernel writes a page at a time.
    let mut text = Vec::with_capacity(64 * 1024);
    file.read_to_end(&mut text)?;
    Ok(text)
}

/// Reads until nothing changes during a read, or two reads are equal.
fn read_until_stable(
    mut read: impl FnMut() -> io::Result<Vec<u8>>,
    mut has_changed: impl FnMut() -> bool,
) -> io::Result<Vec<u8>> {
    let mut last = None;
    for _ in 0..MAX_READS {
        let text = read()?;
        if !has_changed() || last.as_ref() == Some(&text) {
            return Ok(text);
        }
        last = Some(text);
    }
    Err(Errno::EAGAIN.into())
}

fn reads_are_consistent() -> bool {
    let version = uname().ok().and_then(|uname| version(uname.release().to_str()?));
    version.is_some_and(|version| version >= CONSISTENT_SINCE)
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_stable(reads: &[&str], changed: &[bool]) -> Option<String> {
        let (mut reads, mut changed) = (reads.iter(), changed.iter());
        let text = read_until_stable(
            || Ok(reads.next().unwrap().as_bytes().to_vec()),
            || *changed.next().unwrap(),
        );
        text.ok().map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn older_kernel_is_read_until_nothing_changes_or_two_reads_agree() {
        assert_eq!(read_stable(&["a"], &[false]).as_deref(), Some("a"));
        assert_eq!(read_stable(&["a", "b"], &[true, false]).as_deref(), Some("b"));
        assert_eq!(read_stable(&["a", "b", "b"], &[true, true, true]).as_deref(), Some("b"));
    }

    #[test]
    fn unstable_table_is_an_error() {
        let texts: Vec<String> = (0..MAX_READS).map(|at| at.to_string()).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        assert_eq!(read_stable(&texts, &[true; MAX_READS]), None);
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(version("6.18.44-cloud"), Some((6, 18)));
        assert_eq!(version("5.10"), Some((5, 10)));
        assert!(version("5.10").unwrap() > CONSISTENT_SINCE && version("4.18.0-553.el8").unwrap() < CONSISTENT_SINCE);
        assert_eq!(version("unknown"), None);
    }

    #[test]
    fn regular_file_never_counts_as_unchanged() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut source = Source::new(file.path().to_owned());
        source.read().unwrap();
        assert!(!source.is_unchanged());
    }
}
