//! Calls that may hang in the kernel for ever, each on a thread of its own.

use std::{
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};

use jiff::{Timestamp, Unit};

/// Calls that may hang at a time; further ones are not begun. Each keeps a thread.
const MOST: usize = 128;

/// What is asked of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// To find the mount point.
    Find,
    /// Whether the server answers.
    Probe,
    /// To unmount it.
    Unmount,
    /// To cut the connection and unmount it.
    Force,
    /// Who uses it.
    FindHolders,
}

/// Since when a call hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hang {
    /// When it was begun.
    pub since: Timestamp,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallError {
    /// The call, or the same one before it, has not come back.
    Hangs(Hang),
    /// It was not begun: too many others hang.
    NoFreeThread,
    /// It was not begun or ended badly.
    Aborted,
}

/// The calls that have not come back.
#[derive(Debug, Default)]
pub struct CallsInFlight {
    calls: Mutex<HashMap<(PathBuf, Call), Hang>>,
}

/// Takes the call off the list, however it ends.
struct Listed {
    in_flight: Arc<CallsInFlight>,
    key: (PathBuf, Call),
}

// === impl CallsInFlight ===

impl CallsInFlight {
    /// Does `work` on a thread of its own, and waits for it no longer than `patience`: then it goes on by itself. While it
    /// does, the same call for the same path is not begun again.
    pub fn wait_for<T: Send + 'static>(
        self: &Arc<Self>,
        path: &Path,
        call: Call,
        patience: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CallError> {
        let hang = Hang { since: now() };
        let listed = self.list(path, call, hang)?;
        let (answer, answered) = mpsc::sync_channel(1);
        let run = move || {
            let done = work();
            // Before the answer: whoever hears it may call again.
            drop(listed);
            answer.send(done).ok();
        };
        let thread = thread::Builder::new().name(format!("{call}"));
        thread.spawn(run).map_err(|_| CallError::Aborted)?;
        answered.recv_timeout(patience).map_err(|error| match error {
            mpsc::RecvTimeoutError::Timeout => CallError::Hangs(hang),
            mpsc::RecvTimeoutError::Disconnected => CallError::Aborted,
        })
    }

    /// Does `work` at once, which nothing but the machine itself can make hang. It counts among the calls all the same.
    pub fn run_inline<T>(self: &Arc<Self>, path: &Path, call: Call, work: impl FnOnce() -> T) -> Result<T, CallError> {
        let _listed = self.list(path, call, Hang { since: now() })?;
        Ok(work())
    }

    /// The unmounts that have not come back, for paths that are asked for.
    pub fn unmounts(&self, wanted: impl Fn(&Path) -> bool) -> Vec<(PathBuf, Hang)> {
        let calls = self.calls();
        let unmounts = calls
            .iter()
            .filter(|((_, call), _)| matches!(call, Call::Find | Call::Unmount | Call::Force));
        let wanted = unmounts.filter(|((path, _), _)| wanted(path));
        let mut found: Vec<_> = wanted.map(|((path, _), hang)| (path.clone(), *hang)).collect();
        found.sort_by(|(one, a), (other, b)| one.cmp(other).then(a.since.cmp(&b.since)));
        found.dedup_by(|(later, _), (earlier, _)| later == earlier);
        found
    }

    fn list(self: &Arc<Self>, path: &Path, call: Call, hang: Hang) -> Result<Listed, CallError> {
        let mut calls = self.calls();
        let key = (path.to_owned(), call);
        if let Some(earlier) = calls.get(&key) {
            return Err(CallError::Hangs(*earlier));
        }
        if calls.len() >= MOST {
            return Err(CallError::NoFreeThread);
        }
        calls.insert(key.clone(), hang);
        Ok(Listed {
            in_flight: Arc::clone(self),
            key,
        })
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<(PathBuf, Call), Hang>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For people, to the second.
fn now() -> Timestamp {
    let now = Timestamp::now();
    now.round(Unit::Second).unwrap_or(now)
}

// === impl Listed ===

impl Drop for Listed {
    fn drop(&mut self) {
        self.in_flight.calls().remove(&self.key);
    }
}

// === impl Call ===

impl fmt::Display for Call {
    /// As the thread is called; the kernel takes 15 letters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Find => "find-mount",
            Self::Probe => "probe-server",
            Self::Unmount => "unmount",
            Self::Force => "force-unmount",
            Self::FindHolders => "find-holders",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_hangs_is_not_begun_again_and_holds_up_no_other_path_until_it_comes_back() {
        let in_flight = Arc::new(CallsInFlight::default());
        let (release, hang) = mpsc::channel::<()>();
        let path = Path::new("/v");
        let hung = in_flight.wait_for(path, Call::Unmount, SHORT, move || hang.recv().is_ok());
        let Err(CallError::Hangs(since)) = hung else {
            panic!("{hung:?}")
        };
        let again = in_flight.wait_for(path, Call::Unmount, LONG, || panic!("it is under way"));
        assert_eq!(again, Err::<(), _>(CallError::Hangs(since)));
        assert_eq!(in_flight.unmounts(|it| it == path), [(path.to_owned(), since)]);
        assert_eq!(in_flight.wait_for(Path::new("/w"), Call::Unmount, LONG, || 1), Ok(1));
        assert_eq!(in_flight.wait_for(path, Call::Force, LONG, || 2), Ok(2));
        drop(release);
        while !in_flight.unmounts(|_| true).is_empty() {
            thread::yield_now();
        }
        assert_eq!(in_flight.wait_for(path, Call::Unmount, LONG, || 3), Ok(3));
    }

    #[test]
    fn however_much_hangs_there_is_an_end_to_threads() {
        let in_flight = Arc::new(CallsInFlight::default());
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        for at in 0..MOST {
            let hang = Arc::clone(&hang);
            let path = PathBuf::from(at.to_string());
            let work = move || hang.lock().unwrap().recv().is_ok();
            let done = in_flight.wait_for(&path, Call::Unmount, Duration::ZERO, work);
            assert!(matches!(done, Err(CallError::Hangs(_))), "{done:?}");
        }
        assert_eq!(
            in_flight.wait_for(Path::new("one more"), Call::Unmount, LONG, || ()),
            Err(CallError::NoFreeThread)
        );
        drop(release);
    }

    #[test]
    fn what_is_done_at_once_is_known_of_meanwhile_and_is_not_begun_beside_one_that_hangs() {
        let in_flight = Arc::new(CallsInFlight::default());
        let path = Path::new("/v");
        let known = || in_flight.unmounts(|_| true).len();
        assert_eq!(in_flight.run_inline(path, Call::Unmount, known), Ok(1));
        assert_eq!(known(), 0);
        let (release, hang) = mpsc::channel::<()>();
        let hung = in_flight.wait_for(path, Call::Unmount, SHORT, move || hang.recv().is_ok());
        let here = in_flight.run_inline(path, Call::Unmount, || panic!("it is under way"));
        assert_eq!(here, hung.map(|_| ()));
        drop(release);
    }

    #[test]
    fn work_that_panics_is_over() {
        let in_flight = Arc::new(CallsInFlight::default());
        let path = Path::new("/v");
        let done = in_flight.wait_for(path, Call::Find, LONG, || panic!("as it should"));
        assert_eq!(done, Err::<(), _>(CallError::Aborted));
        assert_eq!(in_flight.wait_for(path, Call::Find, LONG, || 1), Ok(1));
    }
}
