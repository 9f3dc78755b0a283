//! Calls that may hang in the kernel, each on its own thread.

use std::{
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use jiff::{Timestamp, Unit};
use nix::errno::Errno;
use parking_lot::Mutex;

use crate::node::threads::NotDone;

/// Maximum number of calls in flight, since each takes a thread. Further ones are refused.
const MAX_CALLS: usize = 128;

/// A call into the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// Finds the mount point.
    Find,
    /// Checks whether the server answers.
    Probe,
    /// To unmount it.
    Unmount,
    /// Cuts the connection and unmounts.
    Force,
    /// Finds the holders, for a teardown.
    FindHolders,
    /// Finds the holders, for a user who asks. It refuses no search of a teardown.
    DiagnoseHolders,
}

/// Why a call has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallError {
    /// This call, or an earlier identical one that started then, has not returned.
    Hangs(Timestamp),
    /// Not started, or it panicked.
    NotDone(NotDone),
    /// The system call failed.
    Failed(Errno),
}

/// The calls that have not returned.
#[derive(Debug, Default)]
pub struct CallsInFlight {
    /// When each started.
    calls: Mutex<HashMap<(PathBuf, Call), Timestamp>>,
}

/// Removes the call from the list when dropped.
struct ListedCall {
    in_flight: Arc<CallsInFlight>,
    key: (PathBuf, Call),
}

// === impl CallsInFlight ===

impl CallsInFlight {
    /// Runs `work` on a new thread, and waits for at most `timeout`; after that the thread continues alone. Meanwhile,
    /// the same call for the same path is refused.
    pub fn run_with_timeout<T: Send + 'static>(
        self: &Arc<Self>,
        path: &Path,
        call: Call,
        timeout: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CallError> {
        let since = now();
        let listed = self.list(path, call, since)?;
        let (answer, answered) = mpsc::sync_channel(1);
        let run = move || {
            let done = work();
            // Before the answer: its receiver may start the same call again.
            drop(listed);
            answer.send(done).ok();
        };
        let thread = thread::Builder::new().name(call.to_string());
        thread.spawn(run).map_err(|_| CallError::NotDone(NotDone::Aborted))?;
        answered.recv_timeout(timeout).map_err(|error| match error {
            mpsc::RecvTimeoutError::Timeout => CallError::Hangs(since),
            mpsc::RecvTimeoutError::Disconnected => CallError::NotDone(NotDone::Aborted),
        })
    }

    /// The unmounts in flight whose paths are wanted, and when each started.
    pub fn unmounts(&self, wanted: impl Fn(&Path) -> bool) -> Vec<(PathBuf, Timestamp)> {
        let calls = self.calls.lock();
        let is_unmount = |call: &Call| matches!(call, Call::Find | Call::Unmount | Call::Force);
        let wanted = calls
            .iter()
            .filter(|((path, call), _)| is_unmount(call) && wanted(path));
        let mut found: Vec<_> = wanted.map(|((path, _), since)| (path.clone(), *since)).collect();
        found.sort();
        found.dedup_by(|(later, _), (earlier, _)| later == earlier);
        found
    }

    fn list(self: &Arc<Self>, path: &Path, call: Call, since: Timestamp) -> Result<ListedCall, CallError> {
        let mut calls = self.calls.lock();
        let key = (path.to_owned(), call);
        if let Some(earlier) = calls.get(&key) {
            return Err(CallError::Hangs(*earlier));
        }
        if calls.len() >= MAX_CALLS {
            return Err(CallError::NotDone(NotDone::NoFreeThread));
        }
        calls.insert(key.clone(), since);
        Ok(ListedCall {
            in_flight: Arc::clone(self),
            key,
        })
    }
}

/// Rounded to seconds, for messages.
fn now() -> Timestamp {
    let now = Timestamp::now();
    now.round(Unit::Second).unwrap_or(now)
}

// === impl ListedCall ===

impl Drop for ListedCall {
    fn drop(&mut self) {
        self.in_flight.calls.lock().remove(&self.key);
    }
}

// === impl Call ===

impl fmt::Display for Call {
    /// The thread's name, of at most 15 characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Find => "find-mount",
            Self::Probe => "probe-server",
            Self::Unmount => "unmount",
            Self::Force => "force-unmount",
            Self::FindHolders => "find-holders",
            Self::DiagnoseHolders => "holders-for-why",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn hanging_call_is_not_repeated_and_blocks_no_other_path() {
        let in_flight = Arc::new(CallsInFlight::default());
        let (release, hang) = mpsc::channel::<()>();
        let path = Path::new("/v");
        let hung = in_flight.run_with_timeout(path, Call::Unmount, SHORT, move || hang.recv().is_ok());
        let Err(CallError::Hangs(since)) = hung else {
            panic!("{hung:?}")
        };
        let again = in_flight.run_with_timeout(path, Call::Unmount, LONG, || panic!("it is in flight"));
        assert_eq!(again, Err::<(), _>(CallError::Hangs(since)));
        assert_eq!(in_flight.unmounts(|it| it == path), [(path.to_owned(), since)]);
        assert_eq!(
            in_flight.run_with_timeout(Path::new("/w"), Call::Unmount, LONG, || 1),
            Ok(1)
        );
        assert_eq!(in_flight.run_with_timeout(path, Call::Force, LONG, || 2), Ok(2));
        drop(release);
        while !in_flight.unmounts(|_| true).is_empty() {
            thread::yield_now();
        }
        assert_eq!(in_flight.run_with_timeout(path, Call::Unmount, LONG, || 3), Ok(3));
    }

    #[test]
    fn number_of_hanging_threads_is_limited() {
        let in_flight = Arc::new(CallsInFlight::default());
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        for at in 0..MAX_CALLS {
            let hang = Arc::clone(&hang);
            let path = PathBuf::from(at.to_string());
            let work = move || hang.lock().recv().is_ok();
            let done = in_flight.run_with_timeout(&path, Call::Unmount, Duration::ZERO, work);
            assert!(matches!(done, Err(CallError::Hangs(_))), "{done:?}");
        }
        assert_eq!(
            in_flight.run_with_timeout(Path::new("one more"), Call::Unmount, LONG, || ()),
            Err(CallError::NotDone(NotDone::NoFreeThread))
        );
        drop(release);
    }

    #[test]
    fn panicking_call_is_removed() {
        let in_flight = Arc::new(CallsInFlight::default());
        let path = Path::new("/v");
        let done = in_flight.run_with_timeout(path, Call::Find, LONG, || panic!("on purpose"));
        assert_eq!(done, Err::<(), _>(CallError::NotDone(NotDone::Aborted)));
        assert_eq!(in_flight.run_with_timeout(path, Call::Find, LONG, || 1), Ok(1));
    }
}
