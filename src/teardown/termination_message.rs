//! A container's termination message: its file, else the end of its log.
//!
//! The container writes the file, so it is not trusted: only a regular file is read, without following links or blocking, up to a
//! few KiB.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::status::Messages;
use crate::{
    node::cri::types::{Container, ContainerState},
    why::Why,
};

/// Bytes read from the end of the termination message file (`MaxContainerTerminationMessageLength`).
const FILE_LIMIT: u64 = 4096;
/// Lines and bytes used from the end of the log (`MaxContainerTerminationMessageLogLines`, `…LogLength`).
const LOG_LINES: usize = 80;
const LOG_LIMIT: usize = 2048;
/// Raw bytes read from the log. A runtime splits lines at 16 KiB: without the first, truncated line there are still more than
/// [`LOG_LIMIT`] bytes of text or more than [`LOG_LINES`] lines.
const LOG_WINDOW: u64 = 32 * 1024;
/// The runtime's reason for a container that could not be started, and has no log.
const CANNOT_RUN: &str = "ContainerCannotRun";

/// The termination message of this container; empty if it has none. The log counts only if the container's policy allows that and it
/// failed after its start. Blocks on local disks only.
///
/// # Errors
/// If a source exists and cannot be read, or is a directory, a device, a socket or a pipe.
pub fn read(container: &Container) -> Result<String, Why> {
    let path = |path: &str| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let log_counts = container.message_falls_back_to_log && container.exit_code != 0 && container.reason != CANNOT_RUN;
    let file = container.termination_message_file.as_deref().and_then(path);
    let file = file.map(|it| tail(&it, FILE_LIMIT)).transpose()?.unwrap_or_default();
    match path(&container.log_path) {
        Some(log) if log_counts && file.bytes.is_empty() => Ok(end_of_log(&tail(&log, LOG_WINDOW)?)),
        Some(_) | None => Ok(file.text()),
    }
}

/// The messages of all exited containers. If one cannot be read, its message says so, like the kubelet's. The errors are also
/// returned, for the log.
pub fn read_all<'a>(containers: impl IntoIterator<Item = &'a Container>) -> (Messages, Vec<Why>) {
    let mut messages = Messages::default();
    let mut errors = Vec::new();
    let containers = containers.into_iter();
    for container in containers.filter(|it| it.state == ContainerState::Exited) {
        let text = read(container).unwrap_or_else(|error| {
            let text = format!("Termination message lost: {error}");
            errors.push(error);
            text
        });
        // Without a text, one that was read before counts.
        if !text.is_empty() {
            messages.insert(container.id.clone(), text);
        }
    }
    (messages, errors)
}

/// The end of a file.
#[derive(Debug, Default)]
struct Tail {
    bytes: Vec<u8>,
    /// Whether the file is longer.
    cut: bool,
}

// === impl Tail ===

impl Tail {
    /// The text. A character that is split at the beginning is omitted, and invalid bytes are replaced.
    fn text(&self) -> String {
        let is_continuation = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
        // At most three bytes can belong to a character that began before the tail.
        let split = if self.cut {
            self.bytes.iter().take(3).take_while(is_continuation).count()
        } else {
            0
        };
        String::from_utf8_lossy(&self.bytes[split..]).into_owned()
    }
}

/// At most `limit` bytes from the end of a regular file; empty if it does not exist.
fn tail(path: &Path, limit: u64) -> Result<Tail, Why> {
    let path_text = path.display();
    let not_a_file = || Err(Why::new(format_args!("{path_text} is not a regular file")));
    let failed = |error: io::Error| Why::new(format_args!("cannot read {path_text}: {error}"));
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    let mut file = match File::options().read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Tail::default());
        }
        // Errors of open(2) for a link with O_NOFOLLOW, and for a socket or a device without a driver.
        Err(error) if matches!(error.raw_os_error(), Some(nix::libc::ELOOP | nix::libc::ENXIO)) => {
            return not_a_file();
        }
        Err(error) => return Err(failed(error)),
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return not_a_file();
    }
    let start = metadata.len().saturating_sub(limit);
    file.seek(SeekFrom::Start(start)).map_err(failed)?;
    let mut bytes = Vec::new();
    // Limited again: the file may grow while it is read.
    file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Tail { bytes, cut: start > 0 })
}

/// The text of the last lines of a log in CRI format, `TIMESTAMP STREAM TAG text`.
fn end_of_log(tail: &Tail) -> String {
    let mut lines: Vec<&[u8]> = tail.bytes.split(|byte| *byte == b'\n').collect();
    if lines.last().is_some_and(|last| last.is_empty()) {
        lines.pop();
    }
    if tail.cut && lines.len() > 1 {
        lines.remove(0);
    }
    let skipped = lines.len().saturating_sub(LOG_LINES);
    let mut text = Vec::new();
    for (part, is_complete) in lines.iter().skip(skipped).filter_map(|line| text_of_line(line)) {
        text.extend_from_slice(part);
        if is_complete {
            text.push(b'\n');
        }
    }
    let cut = text.len() > LOG_LIMIT;
    text.drain(..text.len().saturating_sub(LOG_LIMIT));
    Tail { bytes: text, cut }.text()
}

/// The text of a line, and whether it is the last part of a line. `None` if it is not in the format: the kubelet skips such lines, too.
fn text_of_line(line: &[u8]) -> Option<(&[u8], bool)> {
    let fields: Vec<&[u8]> = line.splitn(4, |byte| *byte == b' ').collect();
    let [_timestamp, b"stdout" | b"stderr", tags, text] = fields[..] else {
        return None;
    };
    // Tags are separated by colons. The first one is partial or full.
    Some((text, tags.split(|byte| *byte == b':').next() != Some(b"P")))
}
