//! The text of the mount table.

use std::{fs, io, path::Path};

use nix::{errno::Errno, sys::utsname::uname};

/// Since this version the kernel skips no mount when others are removed during a read.
const CONSISTENT_SINCE: (u32, u32) = (5, 8);
/// How often an older kernel is read until the table is stable.
const MAX_READS: usize = 10;

/// The current text.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    if reads_are_consistent() {
        fs::read(path)
    } else {
        read_until_stable(|| fs::read(path))
    }
}

/// Reads until two reads are equal.
fn read_until_stable(mut read: impl FnMut() -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
    let mut last = read()?;
    for _ in 1..MAX_READS {
        let text = read()?;
        if text == last {
            return Ok(text);
        }
        last = text;
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

    #[test]
    fn older_kernel_is_read_until_two_reads_agree() {
        let stable = |texts: &[&str]| {
            let mut reads = texts.iter().map(|text| text.as_bytes().to_vec());
            read_until_stable(|| Ok(reads.next().unwrap())).ok()
        };
        assert_eq!(stable(&["a", "b", "b"]), Some(b"b".to_vec()));
        assert_eq!(stable(&["a", "b"].repeat(MAX_READS)), None, "it never is stable");
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(version("6.18.44-cloud"), Some((6, 18)));
        assert_eq!(version("5.10"), Some((5, 10)));
        assert!(version("5.10").unwrap() > CONSISTENT_SINCE && version("4.18.0-553.el8").unwrap() < CONSISTENT_SINCE);
        assert_eq!(version("unknown"), None);
    }
}
