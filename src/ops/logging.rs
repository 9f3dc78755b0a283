//! Sets logging up: text on a terminal, journald fields under systemd, otherwise JSON.

pub(super) mod fields;
pub(super) mod queue;

use std::{
    fmt,
    fs::File,
    io::{self, IsTerminal as _, Write},
    os::fd::AsFd as _,
    panic,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use jiff::Timestamp;
use serde_json::{Map, Value};
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    field::MakeExt as _,
    filter::Targets,
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::{JsonFields, Writer, debug_fn},
    },
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

use self::{
    fields::{Fields, MAX_VALUE},
    queue::LogQueue,
};
use super::journald::{self, Journald};
use crate::model::foreign::{self, ForeignText};

/// The filter without `RUST_LOG`. It hides messages of the clients' libraries: the agent logs the same failures with their pods.
const DEFAULT_FILTER: &str = "info,kube_client=off,tower=warn,hyper=warn,h2=warn";

/// The queue of lines, once logging was started.
static QUEUE: OnceLock<Arc<LogQueue>> = OnceLock::new();

/// See [`panics`].
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Puts a line into the queue. A log without a reader must not block the agent.
struct Line(Arc<LogQueue>);

/// Formats a line as one JSON object with the fields of its event and its spans: `pod.uid` finds all lines of a pod.
struct FlatJson;

/// Starts logging to the journal or to standard error.
///
/// # Errors
/// When a thread or a file descriptor cannot be created.
pub fn start() -> io::Result<()> {
    let rust_log = std::env::var("RUST_LOG").unwrap_or_default();
    let parsed = rust_log.parse::<Targets>();
    let filter = match &parsed {
        Ok(filter) if !rust_log.is_empty() => filter.clone(),
        _ => DEFAULT_FILTER.parse().unwrap_or_default(),
    };
    let registry = tracing_subscriber::registry().with(filter);
    let journal = journal();
    let is_journal = journal.is_some();
    let queue = match journal {
        Some(write) => LogQueue::start(write, report_dropped),
        None => {
            // A separate descriptor, because a blocked write would hold the lock of `io::stderr`.
            let mut stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
            LogQueue::start(move |line| stderr.write_all(line), report_dropped)
        }
    }?;
    let queue = QUEUE.get_or_init(|| queue);
    // The default hook writes to standard error, which may block.
    panic::set_hook(Box::new(|panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        tracing::error!(%panic, thread = thread::current().name(), "Panic");
    }));
    let to_queue = Arc::clone(queue);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(move || Line(Arc::clone(&to_queue)))
        .log_internal_errors(false);
    if is_journal {
        registry.with(Journald(Arc::clone(queue))).init();
    } else if io::stderr().is_terminal() {
        registry.with(lines.with_target(false).fmt_fields(text())).init();
    } else {
        registry
            .with(lines.fmt_fields(JsonFields::new()).event_format(FlatJson))
            .init();
    }
    if let Err(error) = parsed {
        tracing::warn!(%error, rust_log, "RUST_LOG is invalid and ignored; write it like info,pod_teardown=debug");
    }
    Ok(())
}

/// Waits until all lines are written, at most a second.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush();
    }
}

/// Number of log lines dropped since the start.
pub fn dropped() -> u64 {
    QUEUE.get().map_or(0, |queue| queue.dropped())
}

/// Number of panics since the start.
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

fn report_dropped(lines: u64) {
    tracing::warn!(
        lines,
        "Log lines were dropped: the journal or standard error was too slow"
    );
}

/// The writer of the journal, if standard error is connected to it (systemd.exec(5): `JOURNAL_STREAM`).
fn journal() -> Option<impl FnMut(&[u8]) -> io::Result<()> + Send + 'static> {
    let stream = std::env::var("JOURNAL_STREAM").ok()?;
    let stderr = nix::sys::stat::fstat(io::stderr()).ok()?;
    let is_journal = stream == format!("{}:{}", stderr.st_dev, stderr.st_ino);
    is_journal.then(|| journald::writer(Path::new(journald::SOCKET)))?.ok()
}

/// Formats fields for a terminal, with control characters escaped.
fn text() -> impl for<'a> FormatFields<'a> + 'static {
    debug_fn(|writer, field, value| {
        let value = ForeignText::within(&format!("{value:?}"), MAX_VALUE);
        match field.name() {
            "message" => write!(writer, "{value}"),
            name => write!(writer, "{name}={value}"),
        }
    })
    .delimited(" ")
}

// === impl Line ===

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl FlatJson ===

impl<S: Subscriber + for<'a> LookupSpan<'a>> FormatEvent<S, JsonFields> for FlatJson {
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
        writeln!(writer, "{}", foreign::escape_json(Value::Object(line).to_string()))
    }
}

/// The output of `log` in each log format.
#[cfg(test)]
pub(crate) fn log_in_all_formats(log: impl Fn()) -> [(&'static str, String); 3] {
    use std::os::unix::net::UnixDatagram;

    let (terminal, json) = (tests::Lines::default(), tests::Lines::default());
    let (to_terminal, to_json) = (terminal.clone(), json.clone());
    let lines = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || to_terminal.clone());
    tracing::subscriber::with_default(lines.fmt_fields(text()).finish(), &log);
    let lines = tracing_subscriber::fmt().with_writer(move || to_json.clone());
    let lines = lines.fmt_fields(JsonFields::new()).event_format(FlatJson);
    tracing::subscriber::with_default(lines.finish(), &log);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let journal = UnixDatagram::bind(&path).unwrap();
    journal.set_nonblocking(true).unwrap();
    let queue = LogQueue::start(journald::writer(&path).unwrap(), |_| {}).unwrap();
    let registry = tracing_subscriber::registry().with(Journald(Arc::clone(&queue)));
    tracing::subscriber::with_default(registry, &log);
    queue.flush_all();
    let mut entries = String::new();
    let mut entry = vec![0; 1 << 20];
    while let Ok(length) = journal.recv(&mut entry) {
        for (name, value) in journald::fields(&entry[..length]) {
            entries += &format!("{name}={value}\n");
        }
    }
    [
        ("log on a terminal", terminal.text()),
        ("log in JSON", json.text()),
        ("log in the journal", entries),
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    pub struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        pub fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Lines {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn pod_uid_finds_all_lines_of_a_pod_with_and_without_its_span() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .fmt_fields(JsonFields::new())
            .event_format(FlatJson)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let uid = "u1";
            tracing::info_span!("pod", pod.uid = %uid, pod.name = %"web").in_scope(|| {
                tracing::warn!(what = None::<&str>, cause = "a \"b\"\nc", pods = 3, "Inside");
            });
            tracing::info!(pod.uid = %uid, done = true, "Outside");
        });
        let text = lines.text();
        let parsed: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(parsed.len(), 2);
        assert!(
            parsed
                .iter()
                .all(|line| line["pod.uid"] == "u1" && line["timestamp"].is_string())
        );
        assert_eq!(
            (&parsed[0]["message"], &parsed[0]["pods"]),
            (&"Inside".into(), &3.into())
        );
        assert_eq!(
            (&parsed[0]["pod.name"], &parsed[0]["cause"]),
            (&"web".into(), &"a \"b\"\nc".into())
        );
        assert_eq!(
            (&parsed[1]["level"], &parsed[1]["done"]),
            (&"INFO".into(), &true.into())
        );
        assert!(parsed[0].get("what").is_none());
    }
}
