//! Keeps the process small.

#![allow(unsafe_code, reason = "the C library's allocator has no safe way to be told")]

/// From here on a piece of memory has pages of its own, which go back as soon as it is freed. Fixed, because the
/// allocator would raise it with every large piece that it sees.
#[cfg(target_env = "gnu")]
const OWN_PAGES: libc::c_int = 64 << 10;

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

/// Gives back what a node full of pods that ended has left: the allocator itself only cuts off the end.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` is thread-safe, and gives back only pages in which nothing is.
    let _ = unsafe { libc::malloc_trim(0) };
}
