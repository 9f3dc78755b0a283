//! When the node is searched for a kubelet that has not been seen yet. Pure.
//!
//! Events of the kernel show a kubelet's start at once. Their absence proves nothing: only a search of all processes does. With
//! events, searches are rarer. A loss of events causes one search soon. A search that failed is repeated as without events.

use std::time::Duration;

use tokio::time::Instant;

/// How often all processes are searched without events.
pub(super) const SEARCH_INTERVAL: Duration = Duration::from_secs(1);
/// The same while work is in progress: a kubelet needs about a second from its start to its first work on a pod.
pub(super) const BUSY_SEARCH_INTERVAL: Duration = Duration::from_millis(250);
/// The same with events. The result of a search counts for five seconds, and the next one may take two.
pub(super) const PROOF_INTERVAL: Duration = Duration::from_secs(2);
/// A new process under another name than a kubelet's may open a kubelet's sockets within this time.
const START_TIME: Duration = Duration::from_secs(10);

/// What is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    /// All processes: only this proves that there is no kubelet.
    Processes,
    /// The sockets of the node: a kubelet under any name opens some.
    Sockets,
}

/// The last searches, and the events since.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    /// When the last search of all processes began.
    pub searched_at: Instant,
    /// When the sockets were last read alone.
    pub sockets_read_at: Instant,
    /// The kernel reports which process executes a program.
    pub has_events: bool,
    /// The kernel has not reported all of them since the last search.
    pub has_lost_events: bool,
    /// The last search has failed.
    pub has_failed: bool,
    /// When a process last executed a program.
    pub started_at: Option<Instant>,
    /// The same for a program with a kubelet's name.
    pub candidate_at: Option<Instant>,
}

// === impl Schedule ===

impl Schedule {
    /// The schedule after a search that began then, and before any event.
    pub(super) fn new(searched_at: Instant, has_events: bool) -> Self {
        Self {
            searched_at,
            sockets_read_at: searched_at,
            has_events,
            has_lost_events: false,
            has_failed: false,
            started_at: None,
            candidate_at: None,
        }
    }

    /// The next search, and when it is due.
    pub(super) fn next(&self, is_busy: bool) -> (Instant, Search) {
        let interval = if is_busy { BUSY_SEARCH_INTERVAL } else { SEARCH_INTERVAL };
        let follows = |event: Option<Instant>, due: Instant| event.is_some_and(|at| due <= at + START_TIME);
        let soon = self.searched_at + interval;
        let search = if self.has_lost_events {
            self.searched_at + BUSY_SEARCH_INTERVAL
        } else if !self.has_events || self.has_failed || follows(self.candidate_at, soon) {
            soon
        } else {
            self.searched_at + PROOF_INTERVAL
        };
        let sockets = self.sockets_read_at.max(self.searched_at) + interval;
        if sockets < search && (is_busy || follows(self.started_at, sockets)) {
            (sockets, Search::Sockets)
        } else {
            (search, Search::Processes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn processes_are_searched_rarely_only_while_the_kernel_reports_each_start() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let none = Schedule::new(start, false);
        let reported = Schedule::new(start, true);
        let lost = Schedule {
            has_lost_events: true,
            ..reported
        };
        let failed = Schedule {
            has_failed: true,
            ..reported
        };
        let started = |at| Schedule {
            started_at: Some(after(at)),
            ..reported
        };
        let candidate = |at| Schedule {
            candidate_at: Some(after(at)),
            ..started(at)
        };
        let read = |schedule, at| Schedule {
            sockets_read_at: after(at),
            ..schedule
        };
        let later = |schedule: Schedule| Schedule {
            searched_at: after(20_000),
            ..schedule
        };
        let (search, sockets) = (Search::Processes, Search::Sockets);
        for (name, schedule, idle, busy) in [
            ("no events", none, (1000, search), (250, search)),
            ("lost events", lost, (250, search), (250, search)),
            ("failed search", failed, (1000, search), (250, search)),
            ("no start", reported, (2000, search), (250, sockets)),
            ("a start", started(600), (1000, sockets), (250, sockets)),
            (
                "sockets are read",
                read(started(600), 900),
                (1900, sockets),
                (1150, sockets),
            ),
            (
                "search is due first",
                read(started(600), 1800),
                (2000, search),
                (2000, search),
            ),
            (
                "start with a kubelet's name",
                candidate(600),
                (1000, search),
                (250, search),
            ),
            ("old start", later(started(600)), (22_000, search), (20_250, sockets)),
            (
                "old start with a kubelet's name",
                later(candidate(600)),
                (22_000, search),
                (20_250, sockets),
            ),
        ] {
            let expected = |(due, search)| (after(due), search);
            assert_eq!(schedule.next(false), expected(idle), "{name}, idle");
            assert_eq!(schedule.next(true), expected(busy), "{name}, busy");
        }
    }
}
