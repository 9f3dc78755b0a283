//! The journal: each field of a line is a field there, and the line that people read holds them, too.
//!
//! tracing-journald writes the same fields, but of the line only its sentence: "Teardown step failed", of which pod and why
//! only those are told who ask for all fields.

use std::{fmt::Write as _, io, os::unix::net::UnixDatagram, path::Path, sync::Arc};

use serde_json::{Map, Value};
use tracing::{
    Event, Level, Subscriber,
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

use super::logging::{Fields, LONGEST, LogQueue};
use crate::model::foreign::ForeignText;

/// Where journald listens.
pub const SOCKET: &str = "/run/systemd/journal/socket";

/// Makes entries for the journal, and puts them into the queue.
pub struct Journald(pub Arc<LogQueue>);

/// What a span says.
struct OfSpan(Map<String, Value>);

/// Writes entries to the journal, for as long as that takes.
///
/// # Errors
/// When no journal listens there.
pub fn writer(path: &Path) -> io::Result<impl FnMut(&[u8]) -> io::Result<()> + Send + 'static> {
    let (socket, path) = (UnixDatagram::unbound()?, path.to_owned());
    // Nothing is written; it shows whether a journal listens.
    socket.send_to(&[], &path)?;
    Ok(move |entry: &[u8]| socket.send_to(entry, &path).map(drop))
}

// === impl Journald ===

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Journald {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Map::new();
            attributes.record(&mut Fields(&mut fields));
            span.extensions_mut().insert(OfSpan(fields));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(OfSpan(fields)) = span.extensions_mut().get_mut()
        {
            values.record(&mut Fields(fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Map::new();
        for span in context
            .event_scope(event)
            .into_iter()
            .flat_map(|scope| scope.from_root())
        {
            if let Some(OfSpan(of_span)) = span.extensions().get() {
                fields.extend(of_span.clone());
            }
        }
        event.record(&mut Fields(&mut fields));
        self.0
            .put(entry(*event.metadata().level(), event.metadata().target(), fields));
    }
}

/// As journald reads it: a name, the length of the value, the value.
fn entry(level: Level, target: &str, mut fields: Map<String, Value>) -> Vec<u8> {
    // As syslog has them; what is told of all that works is of the lowest but one.
    let priority = match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    };
    let mut line = String::from(fields.remove("message").map(text).unwrap_or_default());
    let fields: Vec<_> = fields.into_iter().map(|(name, value)| (name, text(value))).collect();
    for (name, value) in &fields {
        // Who reads the line looks a pod up by its name.
        if name != "pod.uid" {
            write!(line, " {name}={value}").ok();
        }
    }
    let mut entry = Vec::new();
    let fixed = [
        ("MESSAGE", &*line),
        ("PRIORITY", priority),
        ("SYSLOG_IDENTIFIER", env!("CARGO_PKG_NAME")),
        ("TARGET", target),
    ];
    for (name, value) in fixed {
        put(&mut entry, name, value);
    }
    for (name, value) in &fields {
        put(&mut entry, &field(name), value);
    }
    entry
}

fn put(entry: &mut Vec<u8>, name: &str, value: &str) {
    let value = &value.as_bytes()[..value.floor_char_boundary(LONGEST)];
    entry.extend_from_slice(name.as_bytes());
    entry.push(b'\n');
    entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
    entry.extend_from_slice(value);
    entry.push(b'\n');
}

/// `pod.uid` is `POD_UID`: journald takes capitals, digits and underscores.
fn field(name: &str) -> String {
    let legal = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    name.trim_start_matches('_').chars().map(legal).collect()
}

/// journalctl hides a message with control characters, and a newline in one forges a line.
fn text(value: Value) -> ForeignText {
    match value {
        Value::String(text) => ForeignText::within(&text, LONGEST),
        other => ForeignText::within(&other.to_string(), LONGEST),
    }
}

#[cfg(test)]
/// The fields of an entry.
pub(super) fn read(mut entry: &[u8]) -> std::collections::BTreeMap<String, String> {
    let mut fields = std::collections::BTreeMap::new();
    while let Some(end) = entry.iter().position(|byte| *byte == b'\n') {
        let name = String::from_utf8(entry[..end].to_vec()).unwrap();
        let (length, rest) = entry[end + 1..].split_at(8);
        let length = usize::try_from(u64::from_le_bytes(length.try_into().unwrap())).unwrap();
        fields.insert(name, String::from_utf8(rest[..length].to_vec()).unwrap());
        entry = &rest[length + 1..];
    }
    fields
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn every_field_is_one_of_the_journal_and_the_line_has_what_people_look_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let journal = UnixDatagram::bind(&path).unwrap();
        let queue = LogQueue::start(writer(&path).unwrap(), |_| {}).unwrap();
        let subscriber = tracing_subscriber::registry().with(Journald(queue));
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("pod", pod.uid = %"u1", pod.name = %"web", grace = tracing::field::Empty);
            span.record("grace", 7);
            span.in_scope(|| tracing::warn!(error = %"a\nb", "It failed"));
        });
        let mut entry = [0; 4096];
        assert_eq!(
            journal.recv(&mut entry).unwrap(),
            0,
            "somebody asks whether it is there"
        );
        let length = journal.recv(&mut entry).unwrap();
        let fields = read(&entry[..length]);
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
    fn what_is_too_long_is_cut_and_where_nobody_listens_there_is_no_journal() {
        let long = "ü".repeat(LONGEST);
        let fields = Map::from_iter([("message".to_owned(), Value::from(long))]);
        let cut = read(&entry(Level::INFO, "t", fields));
        assert!((LONGEST - 3..=LONGEST).contains(&cut["MESSAGE"].len()));
        assert!(writer(Path::new("/no/such/journal")).is_err());
    }
}
