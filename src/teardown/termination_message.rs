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
use thiserror::Error;

use super::status::Messages;
use crate::node::cri::types::{Container, ContainerState};

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

/// Why a termination message could not be read.
#[derive(Debug, Error)]
pub enum Error {
    /// Open or read failed, and the file exists.
    #[error("cannot {verb} {path}")]
    Io {
        /// The operation.
        verb: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It is a directory, a device, a socket or a pipe.
    #[error("{path} is not a regular file")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
}

// === impl Error ===

impl Error {
    /// In one line, for texts that show no chain of causes.
    fn with_cause(&self) -> String {
        match self {
            Self::Io { source, .. } => format!("{self}: {source}"),
            Self::NotAFile { .. } => self.to_string(),
        }
    }
}

/// Sources of one container's termination message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminationMessage {
    file: Option<PathBuf>,
    log: Option<PathBuf>,
}

// === impl TerminationMessage ===

impl TerminationMessage {
    /// Reads `file`, and `log` only if the file is missing or empty.
    #[cfg(test)]
    pub fn new(file: Option<PathBuf>, log: Option<PathBuf>) -> Self {
        Self { file, log }
    }

    /// The sources for this container. The log counts only if its policy allows that and it failed after its start.
    pub fn for_container(container: &Container) -> Self {
        let log_counts =
            container.message_falls_back_to_log && container.exit_code != 0 && container.reason != CANNOT_RUN;
        let path = |path: &str| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
        Self {
            file: container.termination_message_file.as_deref().and_then(path),
            log: path(&container.log_path).filter(|_| log_counts),
        }
    }

    /// The text, empty if there is none. Blocks on local disks only.
    pub fn read(&self) -> Result<String, Error> {
        let file = self
            .file
            .as_deref()
            .map(|file| tail(file, FILE_LIMIT))
            .transpose()?
            .unwrap_or_default();
        match &self.log {
            Some(log) if file.bytes.is_empty() => Ok(end_of_log(&tail(log, LOG_WINDOW)?)),
            Some(_) | None => Ok(file.text()),
        }
    }
}

/// The messages of all exited containers. If one cannot be read, its message says so, like the kubelet's. The errors are also
/// returned, for the log.
pub fn read_all<'a>(containers: impl IntoIterator<Item = &'a Container>) -> (Messages, Vec<Error>) {
    let mut messages = Messages::default();
    let mut errors = Vec::new();
    for container in containers
        .into_iter()
        .filter(|container| container.state == ContainerState::Exited)
    {
        match TerminationMessage::for_container(container).read() {
            Ok(text) => messages.insert(&container.id, text),
            Err(error) => {
                messages.insert(
                    &container.id,
                    format!("Termination message lost: {}", error.with_cause()),
                );
                errors.push(error);
            }
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
fn tail(path: &Path, limit: u64) -> Result<Tail, Error> {
    let io = |verb| {
        move |source| Error::Io {
            verb,
            path: path.to_owned(),
            source,
        }
    };
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    let mut file = match File::options().read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Tail::default());
        }
        // Errors of open(2) for a link with O_NOFOLLOW, and for a socket or a device without a driver.
        Err(error) if matches!(error.raw_os_error(), Some(nix::libc::ELOOP | nix::libc::ENXIO)) => {
            return Err(Error::NotAFile { path: path.to_owned() });
        }
        Err(error) => return Err(io("open")(error)),
    };
    let metadata = file.metadata().map_err(io("stat"))?;
    if !metadata.is_file() {
        return Err(Error::NotAFile { path: path.to_owned() });
    }
    let start = metadata.len().saturating_sub(limit);
    file.seek(SeekFrom::Start(start)).map_err(io("seek in"))?;
    let mut bytes = Vec::new();
    // Limited again: the file may grow while it is read.
    file.take(limit).read_to_end(&mut bytes).map_err(io("read"))?;
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
    for line in lines.iter().skip(skipped).filter_map(|line| LogLine::parse(line)) {
        text.extend_from_slice(line.text);
        if line.is_complete {
            text.push(b'\n');
        }
    }
    let cut = text.len() > LOG_LIMIT;
    text.drain(..text.len().saturating_sub(LOG_LIMIT));
    Tail { bytes: text, cut }.text()
}

/// One line of a log.
#[derive(Debug)]
struct LogLine<'a> {
    text: &'a [u8],
    /// The last part of a line.
    is_complete: bool,
}

impl<'a> LogLine<'a> {
    /// `None` if it is not in the format. The kubelet skips such lines, too.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(4, |byte| *byte == b' ');
        let _timestamp = fields.next()?;
        let stream = fields.next()?;
        let tags = fields.next()?;
        let text = fields.next()?;
        let known_stream = matches!(stream, b"stdout" | b"stderr");
        // Tags are separated by colons. The first one is partial or full.
        let is_complete = tags.split(|byte| *byte == b':').next() != Some(b"P");
        known_stream.then_some(Self { text, is_complete })
    }
}
