//! The queue of log lines. A separate thread writes them: a blocked journal or pipe blocks only that thread.

use std::{
    cell::Cell,
    collections::VecDeque,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

/// Maximum size of the queue; further lines are dropped.
const MAX_BYTES: usize = 1 << 20;
/// Maximum time to write the queue when the agent exits.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

thread_local! {
    /// Number of dropped lines that the next line of this thread announces.
    static ANNOUNCES: Cell<u64> = const { Cell::new(0) };
}

/// The queue of log lines.
#[derive(Default)]
pub struct LogQueue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Entry>,
    bytes: usize,
    /// A line was removed, and is not written yet.
    is_writing: bool,
    /// Number of dropped lines whose announcement is queued or written.
    announced: u64,
    /// An announcement is queued. Further dropped lines are announced after it, so that announcements do not fill the queue.
    has_announcement: bool,
}

struct Entry {
    line: Vec<u8>,
    /// Number of dropped lines that it announces; 0 for any other line.
    announces: u64,
}

// === impl LogQueue ===

impl LogQueue {
    /// Starts a queue whose lines are written by `write`, which may block. After lines were dropped and another one was written,
    /// `report` is called with their number and must push one line. Without that line, or if it is refused, `report` is called
    /// again.
    ///
    /// # Errors
    /// When the thread cannot be created.
    pub fn start(
        mut write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static,
        report: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self::default());
        let lines = Arc::clone(&queue);
        let run = move || {
            loop {
                let entry = lines.next();
                let is_written = write(&entry.line).is_ok();
                if !is_written {
                    lines.count_refused(&entry);
                }
                let unannounced = lines.unannounced();
                if is_written && unannounced > 0 {
                    ANNOUNCES.set(unannounced);
                    report(unannounced);
                    // The log level may have filtered the announcement.
                    ANNOUNCES.set(0);
                }
                lines.lock().is_writing = false;
                lines.changed.notify_all();
            }
        };
        thread::Builder::new().name("log".to_owned()).spawn(run)?;
        Ok(queue)
    }

    /// Adds a line, or drops it if the queue is full; never blocks. An announcement is not dropped: there is at most one.
    pub fn push(&self, line: Vec<u8>) {
        let announces = ANNOUNCES.take();
        let mut waiting = self.lock();
        if announces > 0 {
            waiting.announced += announces;
            waiting.has_announcement = true;
        } else if waiting.bytes + line.len() > MAX_BYTES {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(Entry { line, announces });
        self.changed.notify_all();
    }

    /// Waits until all lines are written, at most a second.
    pub fn flush(&self) {
        self.flush_within(FLUSH_TIMEOUT);
    }

    fn flush_within(&self, timeout: Duration) {
        let is_busy = |waiting: &mut Waiting| waiting.is_writing || !waiting.lines.is_empty();
        drop(self.changed.wait_timeout_while(self.lock(), timeout, is_busy));
    }

    /// Waits until all lines are written, also on a busy machine.
    #[cfg(test)]
    pub fn flush_all(&self) {
        self.flush_within(Duration::from_secs(60));
    }

    /// Number of lines that were dropped, or refused by the journal or standard error.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Counts a line that was refused; an announcement is repeated.
    fn count_refused(&self, entry: &Entry) {
        match entry.announces {
            0 => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
            count => self.lock().announced -= count,
        }
    }

    /// Number of dropped lines to announce now.
    fn unannounced(&self) -> u64 {
        let waiting = self.lock();
        if waiting.has_announcement {
            return 0;
        }
        self.dropped() - waiting.announced
    }

    fn next(&self) -> Entry {
        let mut waiting = self.lock();
        loop {
            if let Some(entry) = waiting.lines.pop_front() {
                waiting.bytes -= entry.line.len();
                waiting.has_announcement &= entry.announces == 0;
                waiting.is_writing = true;
                return entry;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A queue whose writer waits for a permit before each line: permits, begun writes, written lines, queue.
    fn queue_with_permits() -> (
        mpsc::Sender<()>,
        mpsc::Receiver<()>,
        mpsc::Receiver<Vec<u8>>,
        Arc<LogQueue>,
    ) {
        let (permits, permitted) = mpsc::channel::<()>();
        let (begins, begun) = mpsc::channel();
        let (written, lines) = mpsc::channel();
        let write = move |line: &[u8]| {
            begins.send(()).ok();
            permitted.recv().ok();
            written.send(line.to_vec()).map_err(io::Error::other)
        };
        (permits, begun, lines, announcing_queue(write))
    }

    fn announcing_queue(write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static) -> Arc<LogQueue> {
        let own_handle = Arc::new(std::sync::OnceLock::<Arc<LogQueue>>::new());
        let to_queue = Arc::clone(&own_handle);
        let report = move |count| to_queue.wait().push(format!("dropped {count}").into_bytes());
        let queue = LogQueue::start(write, report).unwrap();
        assert!(own_handle.set(Arc::clone(&queue)).is_ok());
        queue
    }

    fn line(number: usize) -> Vec<u8> {
        format!("{number:<1023}\n").into_bytes()
    }

    /// The announced counts.
    fn announced(lines: &[Vec<u8>]) -> Vec<u64> {
        let counts = lines.iter().filter_map(|line| line.strip_prefix(b"dropped "));
        counts
            .map(|count| String::from_utf8_lossy(count).parse().unwrap())
            .collect()
    }

    #[test]
    fn blocked_writer_blocks_no_caller_and_dropped_lines_are_announced_later() {
        let (permits, begun, lines, queue) = queue_with_permits();
        queue.push(line(0));
        begun.recv().unwrap();
        // One is being written, and the queue is full.
        let kept = 1 + MAX_BYTES / 1024;
        (1..kept + 100).for_each(|number| queue.push(line(number)));
        let lost = queue.dropped();
        assert_eq!(lost, 100);
        queue.flush();
        assert_eq!(lines.try_iter().count(), 0, "the flush has a timeout");

        drop(permits);
        queue.flush_all();
        let all: Vec<Vec<u8>> = lines.try_iter().collect();
        let (announcement, all) = all.split_last().unwrap();
        assert!(all.iter().cloned().eq((0..kept).map(line)), "in order");
        assert_eq!(announced(std::slice::from_ref(announcement)), [lost]);
        queue.push(line(0));
        queue.flush_all();
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), [line(0)], "reported once");
        assert_eq!(queue.dropped(), lost);
    }

    #[test]
    fn announced_counts_are_exact_while_the_queue_stays_full() {
        let (permits, begun, lines, queue) = queue_with_permits();
        queue.push(line(0));
        begun.recv().unwrap();
        let full = 1 + MAX_BYTES / 1024;
        (0..full + 50).for_each(|number| queue.push(line(number)));
        // Callers fill the queue again after each write, so that further lines are dropped.
        for number in 0..3 * full {
            permits.send(()).unwrap();
            begun.recv().unwrap();
            (0..3).for_each(|_| queue.push(line(number)));
        }
        drop(permits);
        queue.flush_all();
        let all: Vec<Vec<u8>> = lines.try_iter().collect();
        let announced = announced(&all);
        assert_eq!(announced.iter().sum::<u64>(), queue.dropped());
        assert!(
            announced.len() < 10,
            "announcements do not displace lines: {announced:?}"
        );
    }

    #[test]
    fn refused_announcement_is_repeated_and_does_not_count_as_dropped() {
        let (written, lines) = mpsc::channel();
        let mut refuses = 3;
        let write = move |line: &[u8]| {
            let is_refused = line == b"refused" || (line.starts_with(b"dropped") && refuses > 0);
            refuses -= i32::from(is_refused && line != b"refused");
            match is_refused {
                true => Err(io::ErrorKind::BrokenPipe.into()),
                false => written.send(line.to_vec()).map_err(io::Error::other),
            }
        };
        let queue = announcing_queue(write);
        for _ in 0..5 {
            queue.push(b"refused".to_vec());
            queue.push(b"taken".to_vec());
            queue.flush_all();
        }
        let all: Vec<Vec<u8>> = lines.try_iter().collect();
        assert_eq!(announced(&all).iter().sum::<u64>(), 5);
        assert_eq!(queue.dropped(), 5);
    }

    #[test]
    fn refused_lines_count_as_dropped() {
        let queue = LogQueue::start(
            |_| Err(io::ErrorKind::BrokenPipe.into()),
            |_| panic!("no line is written"),
        )
        .unwrap();
        queue.push(b"line\n".to_vec());
        queue.flush_all();
        assert_eq!(queue.dropped(), 1);
    }
}
