//! Keeps the process small.

#![allow(unsafe_code, reason = "the C library's allocator has no safe way to be told")]

use std::time::Duration;

use tokio::time::sleep;

/// From here on a piece of memory has pages of its own, which go back as soon as it is freed. Fixed, because the
/// allocator would raise it with every large piece that it sees.
#[cfg(target_env = "gnu")]
const OWN_PAGES: libc::c_int = 64 << 10;
/// By then the agent has started: what it took to read flags and files and to introduce itself is needed no more.
const STARTED: Duration = Duration::from_secs(10);
/// What was used meanwhile is seldom used: to answer people, to come back after an outage, to take pods down.
const SELDOM: Duration = Duration::from_secs(600);

/// One arena for all threads. The C library would give one to each of the short-lived threads that wait for the disk,
/// and what has once been used in an arena is hardly ever given back. Call it before there is a second thread.
pub fn keep_small() {
    #[cfg(target_env = "gnu")]
    for (what, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, OWN_PAGES)] {
        // SAFETY: `mallopt` sets a number in the allocator and touches no memory of ours; no other thread runs yet.
        // Refused, it would only mean more memory.
        let _ = unsafe { libc::mallopt(what, value) };
    }
}

/// Gives back what was used once, every so often, until it is dropped.
pub async fn stay_small() {
    sleep(STARTED).await;
    loop {
        give_back();
        sleep(SELDOM).await;
    }
}

/// Gives back what a node full of pods that ended has left: the allocator itself only cuts off the end.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` is thread-safe, and gives back only pages in which nothing is.
    let _ = unsafe { libc::malloc_trim(0) };
}
