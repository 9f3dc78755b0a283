//! Logs: text on a terminal, fields of journald under systemd, JSON otherwise.

mod queue;

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
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
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

pub(super) use self::queue::LogQueue;
use super::journald::{self, Journald};
use crate::model::foreign::{self, ForeignText};

/// What is logged unless `RUST_LOG` says otherwise. The clients' own layers repeat what is reported here with its pod.
const DEFAULT: &str = "info,kube_client=off,tower=warn,hyper=warn,h2=warn";

/// What is longer than a datagram to journald may be is cut.
pub(super) const LONGEST: usize = 16 << 10;

/// Where lines wait to be written, once the log was started.
static QUEUE: OnceLock<Arc<LogQueue>> = OnceLock::new();

/// See [`panics`].
static PANICS: AtomicU64 = AtomicU64::new(0);

/// A line on its way to the queue. A log without a reader must neither block nor end the agent.
struct Line(Arc<LogQueue>);

/// One object a line, in which the fields of spans and events lie side by side: `pod.uid` finds all of a pod, whether a
/// line was written by its worker or by the watch.
struct Flat;

/// Fields of an event.
pub(super) struct Fields<'a>(pub &'a mut Map<String, Value>);

/// Starts logging to the journal or to standard error.
///
/// # Errors
/// When there is no thread or no descriptor for it.
pub fn start() -> io::Result<()> {
    let wanted = std::env::var("RUST_LOG").unwrap_or_default();
    let parsed = wanted.parse::<Targets>();
    let filter = match &parsed {
        Ok(filter) if !wanted.is_empty() => filter.clone(),
        _ => DEFAULT.parse().unwrap_or_default(),
    };
    let registry = tracing_subscriber::registry().with(filter);
    let journal = journal();
    let is_journal = journal.is_some();
    let queue = match journal {
        Some(write) => LogQueue::start(write, report_dropped),
        None => {
            // A descriptor of its own: a blocked write must not hold the lock of `io::stderr`.
            let mut stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
            LogQueue::start(move |line| stderr.write_all(line), report_dropped)
        }
    }?;
    let queue = QUEUE.get_or_init(|| queue);
    // The standard hook writes to standard error, which may block.
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
            .with(lines.fmt_fields(JsonFields::new()).event_format(Flat))
            .init();
    }
    if let Err(error) = parsed {
        tracing::warn!(%error, wanted, "RUST_LOG is not understood, and ignored; write it like info,pod_teardown=debug");
    }
    Ok(())
}

/// Waits until the lines so far are written, a second at most.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush();
    }
}

/// How many lines of the log were dropped since the start.
pub fn dropped() -> u64 {
    QUEUE.get().map_or(0, |queue| queue.dropped())
}

/// How often anything panicked since the start.
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

fn report_dropped(lines: u64) {
    tracing::warn!(lines, "Log lines were dropped, since nothing took them");
}

/// The journal, if standard error goes there: `pod.uid` becomes its field `POD_UID`.
fn journal() -> Option<impl FnMut(&[u8]) -> io::Result<()> + Send + 'static> {
    let told = std::env::var("JOURNAL_STREAM").ok()?;
    let stderr = nix::sys::stat::fstat(io::stderr()).ok()?;
    let goes_there = told == format!("{}:{}", stderr.st_dev, stderr.st_ino);
    goes_there.then(|| journald::writer(Path::new(journald::SOCKET)))?.ok()
}

/// Fields on a terminal, of which only our own colors reach it: `fmt` would pass on what control characters are in them.
fn text() -> impl for<'a> FormatFields<'a> + 'static {
    debug_fn(|writer, field, value| {
        let value = ForeignText::within(&format!("{value:?}"), LONGEST);
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
        self.0.put(line.to_vec());
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
        writeln!(writer, "{}", foreign::escape_json(Value::Object(line).to_string()))
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
        self.0
            .insert(field.name().to_owned(), foreign::cut(value, LONGEST).into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// What is logged, in each form that a log has.
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
    let lines = lines.fmt_fields(JsonFields::new()).event_format(Flat);
    tracing::subscriber::with_default(lines.finish(), &log);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let journal = UnixDatagram::bind(&path).unwrap();
    journal.set_nonblocking(true).unwrap();
    let queue = LogQueue::start(journald::writer(&path).unwrap(), |_| {}).unwrap();
    let registry = tracing_subscriber::registry().with(Journald(Arc::clone(&queue)));
    tracing::subscriber::with_default(registry, &log);
    queue.flush();
    let mut entries = String::new();
    let mut entry = vec![0; 1 << 20];
    while let Ok(length) = journal.recv(&mut entry) {
        for (name, value) in journald::read(&entry[..length]) {
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
        let told = lines.text();
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
