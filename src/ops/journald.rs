//! Writes log lines to systemd's journal. Each field of a line is a field of the journal, and all but `pod.uid` are also
//! part of `MESSAGE`.
//!
//! tracing-journald leaves the fields out of `MESSAGE`, so that `journalctl` would not show the pod and the error of a line.

use std::{
    io::{self, Write},
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tracing::{Level, Metadata};

use super::logging::fields::{Fields, MAX_VALUE};
use crate::model::foreign::ForeignText;

/// The socket of journald.
pub const SOCKET: &str = "/run/systemd/journal/socket";

/// Writes entries to the journal. It blocks while the journal is busy.
pub struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

// === impl Journal ===

impl Journal {
    /// The journal at this socket.
    ///
    /// # Errors
    /// When no journal listens there.
    pub fn new(path: &Path) -> io::Result<Self> {
        let (socket, path) = (UnixDatagram::unbound()?, path.to_owned());
        // An empty message, which is ignored, shows whether a journal listens.
        socket.send_to(&[], &path)?;
        Ok(Self { socket, path })
    }
}

impl Write for Journal {
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        self.socket.send_to(entry, &self.path)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Encodes an entry in the journal's native protocol: name, length and value of each field.
pub fn entry(metadata: &Metadata<'_>, Fields(mut fields): Fields) -> Vec<u8> {
    // syslog priorities.
    let priority = match *metadata.level() {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    };
    let mut line = String::from(fields.remove("message").map(text).unwrap_or_default());
    let fields: Vec<_> = fields.into_iter().map(|(name, value)| (name, text(value))).collect();
    for (name, value) in &fields {
        // Users know a pod by its name.
        if name != "pod.uid" {
            line += &format!(" {name}={value}");
        }
    }
    let mut entry = Vec::new();
    let fixed = [
        ("MESSAGE", &*line),
        ("PRIORITY", priority),
        ("SYSLOG_IDENTIFIER", env!("CARGO_PKG_NAME")),
        ("TARGET", metadata.target()),
    ];
    for (name, value) in fixed {
        write_field(&mut entry, name, value);
    }
    for (name, value) in &fields {
        write_field(&mut entry, &field_name(name), value);
    }
    entry
}

fn write_field(entry: &mut Vec<u8>, name: &str, value: &str) {
    let value = &value.as_bytes()[..value.floor_char_boundary(MAX_VALUE)];
    entry.extend_from_slice(name.as_bytes());
    entry.push(b'\n');
    entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
    entry.extend_from_slice(value);
    entry.push(b'\n');
}

/// Converts a name, such as `pod.uid` to `POD_UID`: journald accepts capitals, digits and underscores.
fn field_name(name: &str) -> String {
    let name = name.trim_start_matches('_').to_ascii_uppercase();
    name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_")
}

/// Escapes and truncates a value: journalctl hides messages with control characters, and a newline could forge a line.
fn text(value: Value) -> ForeignText {
    match value {
        Value::String(text) => ForeignText::within(&text, MAX_VALUE),
        other => ForeignText::within(&other.to_string(), MAX_VALUE),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Mutex;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::ops::logging::fields::FlatLines;

    /// Parses an entry.
    pub fn fields(mut entry: &[u8]) -> std::collections::BTreeMap<String, String> {
        let mut fields = std::collections::BTreeMap::new();
        while let Some(end) = entry.iter().position(|byte| *byte == b'\n') {
            let name = String::from_utf8(entry[..end].to_vec()).unwrap();
            let (length, tail) = entry[end + 1..].split_at(8);
            let length = usize::try_from(u64::from_le_bytes(length.try_into().unwrap())).unwrap();
            fields.insert(name, String::from_utf8(tail[..length].to_vec()).unwrap());
            entry = &tail[length + 1..];
        }
        fields
    }

    #[test]
    fn every_field_is_a_journal_field_and_the_message_shows_the_pod_and_the_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let journal = UnixDatagram::bind(&path).unwrap();
        let writer = Mutex::new(Journal::new(&path).unwrap());
        let write = move |entry: &[u8]| writer.lock().unwrap().write_all(entry).unwrap();
        let subscriber = tracing_subscriber::registry().with(FlatLines { encode: entry, write });
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("pod", pod.uid = %"u1", pod.name = %"web", grace = tracing::field::Empty);
            span.record("grace", 7);
            span.in_scope(|| tracing::warn!(error = %"a\nb", "It failed"));
        });
        let mut entry = [0; 4096];
        assert_eq!(journal.recv(&mut entry).unwrap(), 0, "the writer checks the socket");
        let length = journal.recv(&mut entry).unwrap();
        let fields = fields(&entry[..length]);
        for (name, value) in [
            ("POD_UID", "u1"),
            ("POD_NAME", "web"),
            ("GRACE", "7"),
            ("ERROR", "a\\nb"),
            ("PRIORITY", "4"),
            ("SYSLOG_IDENTIFIER", "pod-teardown"),
        ] {
            assert_eq!(fields[name], value, "{name} of {fields:?}");
        }
        let line = &fields["MESSAGE"];
        assert!(
            line.starts_with("It failed ") && line.contains("pod.name=web"),
            "{line}"
        );
        assert!(line.contains("error=a\\nb") && !line.contains("u1"), "{line}");
    }

    #[test]
    fn long_values_are_truncated_and_a_missing_journal_is_an_error() {
        let mut entry = Vec::new();
        write_field(&mut entry, "MESSAGE", &"ü".repeat(MAX_VALUE));
        assert!((MAX_VALUE - 3..=MAX_VALUE).contains(&fields(&entry)["MESSAGE"].len()));
        assert!(Journal::new(Path::new("/no/such/journal")).is_err());
    }
}
