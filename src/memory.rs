//! Keeps the process small.

#![allow(unsafe_code, reason = "the C library's allocator has no safe way to be told")]

/// One arena for all threads. The C library would give one to each of the short-lived threads that wait for the disk,
/// and what has once been used in an arena is hardly ever given back. Call it before there is a second thread.
pub fn keep_small() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: `mallopt` sets a number in the allocator and touches no memory of ours; no other thread runs yet.
        // Refused, it would only mean more memory.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}
