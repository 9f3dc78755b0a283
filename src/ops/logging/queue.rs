//! Lines of the log on their way out. A thread of its own writes them: a journal or a pipe that takes nothing blocks the log, and
//! none of the tasks that log.

use std::{
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

/// See the module's documentation.
#[derive(Default)]
pub struct LogQueue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// One was taken out, and is not written yet.
    is_writing: bool,
}

// === impl LogQueue ===

impl LogQueue {
    /// A queue whose lines are written by `write`, which may block. Once a line is taken after others were dropped,
    /// `report` gets their number.
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
            let mut reported = 0;
            loop {
                let is_taken = write(&lines.next()).is_ok();
                if !is_taken {
                    lines.dropped.fetch_add(1, Ordering::Relaxed);
                }
                let dropped = lines.dropped();
                if is_taken && dropped > reported {
                    report(dropped - reported);
                    reported = dropped;
                }
                lines.lock().is_writing = false;
                lines.changed.notify_all();
            }
        };
        thread::Builder::new().name("log".to_owned()).spawn(run)?;
        Ok(queue)
    }

    /// Puts a line at the end, or drops it; never waits.
    pub fn put(&self, line: Vec<u8>) {
        let mut waiting = self.lock();
        if waiting.bytes + line.len() > LARGEST {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line);
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

    fn next(&self) -> Vec<u8> {
        let mut waiting = self.lock();
        loop {
            if let Some(line) = waiting.lines.pop_front() {
                waiting.bytes -= line.len();
                waiting.is_writing = true;
                return line;
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

    #[test]
    fn a_blocked_writer_blocks_no_caller_and_lines_beyond_a_bound_are_dropped_and_reported_later() {
        let (free, blocked) = mpsc::channel::<()>();
        let (begins, begun) = mpsc::channel();
        let (written, lines) = mpsc::channel();
        let (reported, dropped) = mpsc::channel();
        let write = move |line: &[u8]| {
            begins.send(()).ok();
            blocked.recv().ok();
            written.send(line.to_vec()).map_err(io::Error::other)
        };
        let queue = LogQueue::start(write, move |count| reported.send(count).unwrap()).unwrap();
        let line = |number: usize| format!("{number:<1023}\n").into_bytes();
        queue.put(line(0));
        begun.recv().unwrap();
        // One is on its way, and so many wait.
        let kept = 1 + LARGEST / 1024;
        (1..kept + 100).for_each(|number| queue.put(line(number)));
        let lost = queue.dropped();
        assert_eq!(lost, 100);
        queue.flush();
        assert_eq!(lines.try_iter().count(), 0, "the flush has a bound");

        drop(free);
        queue.flush();
        let all: Vec<Vec<u8>> = lines.try_iter().collect();
        assert!(all.into_iter().eq((0..kept).map(line)), "in their order");
        assert_eq!(dropped.try_iter().collect::<Vec<_>>(), [lost]);
        queue.put(line(0));
        queue.flush();
        assert_eq!(
            (lines.try_iter().count(), dropped.try_iter().count()),
            (1, 0),
            "reported once"
        );
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
