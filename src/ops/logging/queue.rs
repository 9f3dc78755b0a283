//! Lines of the log on their way out. A thread of its own writes them: a journal or a pipe that takes nothing blocks the log, and
//! none of the tasks that log.

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

/// Lines that wait may take so much memory; further ones are dropped.
const LARGEST: usize = 1 << 20;
/// At the end of the agent lines that wait have so long to be taken.
const FLUSHED_WITHIN: Duration = Duration::from_secs(1);

thread_local! {
    /// How many dropped lines the line announces that this thread puts next.
    static ANNOUNCES: Cell<u64> = const { Cell::new(0) };
}

/// See the module's documentation.
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
    /// One was taken out, and is not written yet.
    is_writing: bool,
    /// Dropped lines whose announcement waits or is written.
    announced: u64,
    /// An announcement waits. Further dropped lines are announced after it, so that announcements do not fill the queue.
    has_announcement: bool,
}

struct Entry {
    line: Vec<u8>,
    /// How many dropped lines it announces; 0 for any other line.
    announces: u64,
}

// === impl LogQueue ===

impl LogQueue {
    /// A queue whose lines are written by `write`, which may block. Once a line is taken after others were dropped, `report` gets
    /// their number, and puts one line that announces it. It gets that number again, with what was dropped meanwhile, if it puts
    /// none, or if that line is refused.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(
        mut write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static,
        report: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self::default());
        let lines = Arc::clone(&queue);
        let run = move || {
            loop {
                let entry = lines.next();
                let is_taken = write(&entry.line).is_ok();
                if !is_taken {
                    lines.refused(&entry);
                }
                let unannounced = lines.unannounced();
                if is_taken && unannounced > 0 {
                    ANNOUNCES.set(unannounced);
                    report(unannounced);
                    // Where the log's level leaves announcements out, none was put.
                    ANNOUNCES.set(0);
                }
                lines.lock().is_writing = false;
                lines.changed.notify_all();
            }
        };
        thread::Builder::new().name("log".to_owned()).spawn(run)?;
        Ok(queue)
    }

    /// Puts a line at the end, or drops it; never waits. An announcement is not dropped: there is at most one, besides the lines.
    pub fn put(&self, line: Vec<u8>) {
        let announces = ANNOUNCES.take();
        let mut waiting = self.lock();
        if announces > 0 {
            waiting.announced += announces;
            waiting.has_announcement = true;
        } else if waiting.bytes + line.len() > LARGEST {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(Entry { line, announces });
        self.changed.notify_all();
    }

    /// Waits until all lines are written, a second at most.
    pub fn flush(&self) {
        let is_busy = |waiting: &mut Waiting| waiting.is_writing || !waiting.lines.is_empty();
        drop(self.changed.wait_timeout_while(self.lock(), FLUSHED_WITHIN, is_busy));
    }

    /// How many lines were dropped, or refused by the journal or standard error.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Counts a line that was not taken; an announcement is made again.
    fn refused(&self, entry: &Entry) {
        match entry.announces {
            0 => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
            count => self.lock().announced -= count,
        }
    }

    /// How many dropped lines are to be announced now.
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

    /// A writer that waits for a permit before each line; what it has written; a queue that announces what it drops.
    fn limited() -> (
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
        (permits, begun, lines, announcing(write))
    }

    fn announcing(write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static) -> Arc<LogQueue> {
        let itself = Arc::new(std::sync::OnceLock::<Arc<LogQueue>>::new());
        let to_queue = Arc::clone(&itself);
        let report = move |count| to_queue.wait().put(format!("dropped {count}").into_bytes());
        let queue = LogQueue::start(write, report).unwrap();
        assert!(itself.set(Arc::clone(&queue)).is_ok());
        queue
    }

    fn line(number: usize) -> Vec<u8> {
        format!("{number:<1023}\n").into_bytes()
    }

    /// The counts that were announced.
    fn announced(lines: &[Vec<u8>]) -> Vec<u64> {
        let counts = lines.iter().filter_map(|line| line.strip_prefix(b"dropped "));
        counts
            .map(|count| String::from_utf8_lossy(count).parse().unwrap())
            .collect()
    }

    #[test]
    fn a_blocked_writer_blocks_no_caller_and_lines_beyond_a_bound_are_dropped_and_reported_later() {
        let (permits, begun, lines, queue) = limited();
        queue.put(line(0));
        begun.recv().unwrap();
        // One is on its way, and so many wait.
        let kept = 1 + LARGEST / 1024;
        (1..kept + 100).for_each(|number| queue.put(line(number)));
        let lost = queue.dropped();
        assert_eq!(lost, 100);
        queue.flush();
        assert_eq!(lines.try_iter().count(), 0, "the flush has a bound");

        drop(permits);
        queue.flush();
        let all: Vec<Vec<u8>> = lines.try_iter().collect();
        let (announcement, all) = all.split_last().unwrap();
        assert!(all.iter().cloned().eq((0..kept).map(line)), "in their order");
        assert_eq!(announced(std::slice::from_ref(announcement)), [lost]);
        queue.put(line(0));
        queue.flush();
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), [line(0)], "reported once");
        assert_eq!(queue.dropped(), lost);
    }

    #[test]
    fn what_is_announced_is_exactly_what_was_dropped_though_the_queue_stays_full() {
        let (permits, begun, lines, queue) = limited();
        queue.put(line(0));
        begun.recv().unwrap();
        let full = 1 + LARGEST / 1024;
        (0..full + 50).for_each(|number| queue.put(line(number)));
        // Whenever one is written, callers fill its place at once, and further lines are dropped.
        for number in 0..3 * full {
            permits.send(()).unwrap();
            begun.recv().unwrap();
            (0..3).for_each(|_| queue.put(line(number)));
        }
        drop(permits);
        queue.flush();
        let all: Vec<Vec<u8>> = lines.try_iter().collect();
        let announced = announced(&all);
        assert_eq!(announced.iter().sum::<u64>(), queue.dropped());
        assert!(
            announced.len() < 10,
            "announcements do not take the place of lines: {announced:?}"
        );
    }

    #[test]
    fn an_announcement_that_is_refused_is_made_again_and_is_no_dropped_line() {
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
        let queue = announcing(write);
        for _ in 0..5 {
            queue.put(b"refused".to_vec());
            queue.put(b"taken".to_vec());
            queue.flush();
        }
        let all: Vec<Vec<u8>> = lines.try_iter().collect();
        assert_eq!(announced(&all).iter().sum::<u64>(), 5);
        assert_eq!(queue.dropped(), 5);
    }

    #[test]
    fn lines_that_are_refused_count_as_dropped() {
        let queue = LogQueue::start(
            |_| Err(io::ErrorKind::BrokenPipe.into()),
            |_| panic!("nothing is taken"),
        )
        .unwrap();
        queue.put(b"line\n".to_vec());
        queue.flush();
        assert_eq!(queue.dropped(), 1);
    }
}
