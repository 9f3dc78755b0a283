//! Logs: text on a terminal, fields of journald under systemd, JSON otherwise.

use std::{
    fmt,
    io::{self, IsTerminal as _, Write},
    path::Path,
};

use jiff::Timestamp;
use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    filter::Targets,
    fmt::{FmtContext, FormatEvent, FormattedFields, format::JsonFields, format::Writer},
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

use super::journald::{self, Journald};

/// What is logged unless `RUST_LOG` says otherwise. The clients' own layers repeat what is reported here with its pod.
const DEFAULT: &str = "info,kube_client=off,tower=warn,hyper=warn,h2=warn";

/// Standard error. A log that nobody takes must not end what it tells of.
struct Stderr;

/// One object a line, in which the fields of spans and events lie side by side: `pod.uid` finds all of a pod, whether a
/// line was written by its worker or by the watch.
struct Flat;

/// Fields of an event.
pub(super) struct Fields<'a>(pub &'a mut Map<String, Value>);

/// Starts logging to standard error.
pub fn start() {
    let wanted = std::env::var("RUST_LOG").unwrap_or_default();
    let parsed = wanted.parse::<Targets>();
    let filter = match &parsed {
        Ok(filter) if !wanted.is_empty() => filter.clone(),
        _ => DEFAULT.parse().unwrap_or_default(),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| Stderr)
        .log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter);
    if let Some(journald) = journald() {
        registry.with(journald).init();
    } else if io::stderr().is_terminal() {
        registry.with(lines.with_target(false)).init();
    } else {
        registry
            .with(lines.fmt_fields(JsonFields::new()).event_format(Flat))
            .init();
    }
    if let Err(error) = parsed {
        tracing::warn!(%error, wanted, "RUST_LOG is not understood, and ignored; write it like info,pod_teardown=debug");
    }
}

/// The journal, if standard error goes there: `pod.uid` becomes its field `POD_UID`.
fn journald() -> Option<Journald> {
    let told = std::env::var("JOURNAL_STREAM").ok()?;
    let stderr = rustix::fs::fstat(io::stderr()).ok()?;
    let goes_there = told == format!("{}:{}", stderr.st_dev, stderr.st_ino);
    goes_there.then(|| Journald::at(Path::new(journald::SOCKET)))?.ok()
}

// === impl Stderr ===

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(line).ok();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl Flat ===

impl<S: Subscriber + for<'a> LookupSpan<'a>> FormatEvent<S, JsonFields> for Flat {
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Map::new();
        line.insert("timestamp".to_owned(), Timestamp::now().to_string().into());
        line.insert("level".to_owned(), event.metadata().level().as_str().into());
        line.insert("target".to_owned(), event.metadata().target().into());
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<JsonFields>>();
            line.extend(
                fields
                    .and_then(|fields| serde_json::from_str::<Map<_, _>>(fields).ok())
                    .unwrap_or_default(),
            );
        }
        event.record(&mut Fields(&mut line));
        writeln!(writer, "{}", Value::Object(line))
    }
}

// === impl Fields ===

impl Visit for Fields<'_> {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn one_name_finds_all_of_a_pod_within_its_span_and_without() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .fmt_fields(JsonFields::new())
            .event_format(Flat)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let uid = "u1";
            tracing::info_span!("pod", pod.uid = %uid, pod.name = %"web").in_scope(|| {
                tracing::warn!(what = None::<&str>, cause = "a \"b\"\nc", pods = 3, "From within");
            });
            tracing::info!(pod.uid = %uid, done = true, "From without");
        });
        let told = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(told.len(), 2);
        assert!(
            told.iter()
                .all(|line| line["pod.uid"] == "u1" && line["timestamp"].is_string())
        );
        assert_eq!(
            (&told[0]["message"], &told[0]["pods"]),
            (&"From within".into(), &3.into())
        );
        assert_eq!(
            (&told[0]["pod.name"], &told[0]["cause"]),
            (&"web".into(), &"a \"b\"\nc".into())
        );
        assert_eq!((&told[1]["level"], &told[1]["done"]), (&"INFO".into(), &true.into()));
        assert!(told[0].get("what").is_none());
    }
}
