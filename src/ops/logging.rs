//! Sets logging up: text on a terminal, journald fields under systemd, otherwise JSON.
//!
//! A separate thread writes the lines: a blocked journal or pipe blocks only that thread.

pub(super) mod fields;

use std::{
    fs::File,
    io::{self, IsTerminal as _, Write},
    os::fd::AsFd as _,
    panic,
    path::Path,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tracing::Metadata;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    field::MakeExt as _,
    filter::Targets,
    fmt::{FormatFields, format::debug_fn},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use self::fields::{Fields, FlatLines, MAX_VALUE};
use super::journald::{self, Journal};
use crate::model::foreign::{self, ForeignText};

/// The filter without `RUST_LOG`. It hides messages of the clients' libraries: the agent logs the same failures with their pods.
const DEFAULT_FILTER: &str = "info,kube_client=off,tower=warn,hyper=warn,h2=warn";
/// Maximum number of lines that wait to be written; further lines are dropped.
const MAX_LINES: usize = 1024;

/// Longest wait at the exit for lines that are not written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Counts the lines that were dropped because too many waited.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();
/// Number of lines that the journal or standard error has refused.
static REFUSED: AtomicU64 = AtomicU64::new(0);
/// Writes the waiting lines when it is dropped, for a second at most.
static WRITER: Mutex<Option<WorkerGuard>> = Mutex::new(None);
/// See [`panics`].
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Writes lines, counts those that are refused, and reports dropped ones when no line waits any more.
struct Output<W> {
    output: W,
    /// The last line was refused: a report would be, too.
    is_refused: bool,
    /// Number of dropped lines that were reported.
    reported: u64,
}

/// Starts logging to the journal or to standard error.
///
/// # Errors
/// When a file descriptor cannot be created.
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
    let output: Box<dyn Write + Send> = match journal {
        Some(journal) => Box::new(journal),
        // A separate descriptor, because a blocked write would hold the lock of `io::stderr`.
        None => Box::new(File::from(io::stderr().as_fd().try_clone_to_owned()?)),
    };
    let queue = NonBlockingBuilder::default()
        .buffered_lines_limit(MAX_LINES)
        .thread_name("log");
    let (lines, guard) = queue.finish(Output {
        output,
        is_refused: false,
        reported: 0,
    });
    DROPPED.get_or_init(|| lines.error_counter());
    *WRITER.lock() = Some(guard);
    // The default hook writes to standard error, which may block.
    panic::set_hook(Box::new(|panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        tracing::error!(%panic, thread = thread::current().name(), "Panic");
    }));
    if !is_journal && io::stderr().is_terminal() {
        let layer = tracing_subscriber::fmt::layer().log_internal_errors(false);
        let layer = layer.with_writer(lines).with_target(false).fmt_fields(text());
        registry.with(layer).init();
    } else {
        let write = move |line: &[u8]| drop(lines.clone().write_all(line));
        let encode = if is_journal { journald::entry } else { json };
        registry.with(FlatLines { encode, write }).init();
    }
    if let Err(error) = parsed {
        tracing::warn!(%error, rust_log, "RUST_LOG is invalid and ignored; write it like info,pod_teardown=debug");
    }
    Ok(())
}

/// Ends logging. Waits until all lines are written, about a second at most.
pub fn flush() {
    let writer = WRITER.lock().take();
    let (flushed, wait) = mpsc::channel::<()>();
    // The library writes to standard output if it cannot finish, and that may block.
    let flush = move || drop((writer, flushed));
    if thread::Builder::new().spawn(flush).is_ok() {
        wait.recv_timeout(FLUSH_TIMEOUT).ok();
    }
}

/// Number of log lines dropped since the start.
pub fn dropped() -> u64 {
    let too_many = DROPPED.get().map_or(0, ErrorCounter::dropped_lines);
    too_many as u64 + REFUSED.load(Ordering::Relaxed)
}

/// Number of panics since the start.
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// The journal, if standard error is connected to it (systemd.exec(5): `JOURNAL_STREAM`).
fn journal() -> Option<Journal> {
    let stream = std::env::var("JOURNAL_STREAM").ok()?;
    let stderr = nix::sys::stat::fstat(io::stderr()).ok()?;
    let is_journal = stream == format!("{}:{}", stderr.st_dev, stderr.st_ino);
    is_journal.then(|| Journal::new(Path::new(journald::SOCKET)))?.ok()
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

/// Encodes a line as one JSON object.
fn json(metadata: &Metadata<'_>, Fields(mut fields): Fields) -> Vec<u8> {
    for (name, value) in [
        ("timestamp", Timestamp::now().to_string()),
        ("level", metadata.level().to_string()),
        ("target", metadata.target().to_owned()),
    ] {
        fields.insert(name.to_owned(), value.into());
    }
    let line = foreign::escape_json(Value::Object(fields).to_string());
    (line + "\n").into_bytes()
}

// === impl Output ===

impl<W: Write> Write for Output<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // The queue does not report an error.
        self.is_refused = self.output.write_all(line).is_err();
        if self.is_refused {
            REFUSED.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let lines = dropped() - self.reported;
        if lines > 0 && !self.is_refused {
            self.reported += lines;
            tracing::warn!(
                lines,
                "Log lines were dropped: the journal or standard error was too slow"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        os::unix::net::UnixDatagram,
        sync::{Arc, Mutex},
    };

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

    /// The output of `log` in each log format.
    pub(crate) fn log_in_all_formats(log: impl Fn()) -> [(&'static str, String); 3] {
        let (terminal, json) = (Lines::default(), Lines::default());
        let (to_terminal, to_json) = (terminal.clone(), json.clone());
        let lines = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || to_terminal.clone());
        tracing::subscriber::with_default(lines.fmt_fields(text()).finish(), &log);
        let write = move |line: &[u8]| to_json.clone().write_all(line).unwrap();
        let registry = tracing_subscriber::registry().with(FlatLines {
            encode: super::json,
            write,
        });
        tracing::subscriber::with_default(registry, &log);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let journal = UnixDatagram::bind(&path).unwrap();
        journal.set_nonblocking(true).unwrap();
        let writer = Mutex::new(Journal::new(&path).unwrap());
        let write = move |entry: &[u8]| writer.lock().unwrap().write_all(entry).unwrap();
        let encode = journald::entry;
        tracing::subscriber::with_default(tracing_subscriber::registry().with(FlatLines { encode, write }), &log);
        let mut entries = String::new();
        let mut entry = vec![0; 1 << 20];
        while let Ok(length) = journal.recv(&mut entry) {
            for (name, value) in journald::tests::fields(&entry[..length]) {
                entries += &format!("{name}={value}\n");
            }
        }
        [
            ("log on a terminal", terminal.text()),
            ("log in JSON", json.text()),
            ("log in the journal", entries),
        ]
    }

    #[test]
    fn refused_lines_are_counted_and_reported_once_a_line_is_written() {
        let (refusing, lines) = (File::open("/dev/null").unwrap(), Lines::default());
        let mut output = Output {
            output: Box::new(refusing) as Box<dyn Write>,
            is_refused: false,
            reported: 0,
        };
        let report = lines.clone();
        let write = move |line: &[u8]| report.clone().write_all(line).unwrap();
        let subscriber = tracing_subscriber::registry().with(FlatLines { encode: json, write });
        tracing::subscriber::with_default(subscriber, || {
            let before = dropped();
            output.write_all(b"line").unwrap();
            output.flush().unwrap();
            assert!(dropped() > before && lines.text().is_empty());
            output.output = Box::new(io::sink());
            output.write_all(b"line").unwrap();
            output.flush().unwrap();
            output.flush().unwrap();
            assert_eq!(lines.text().matches("Log lines were dropped").count(), 1);
        });
    }

    #[test]
    fn pod_uid_finds_all_lines_of_a_pod_with_and_without_its_span() {
        let lines = Lines::default();
        let writer = lines.clone();
        let write = move |line: &[u8]| writer.clone().write_all(line).unwrap();
        let subscriber = tracing_subscriber::registry().with(FlatLines { encode: json, write });
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
