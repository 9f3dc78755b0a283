//! Settings of the C library's allocator that keep the process small.

#![allow(unsafe_code, reason = "the C library's allocator has no safe interface")]

use std::time::Duration;

use tokio::time::sleep;

/// Allocations from this size on are mmapped and unmapped when freed. Set, since the allocator's dynamic threshold grows with
/// each large allocation (mallopt(3), M_MMAP_THRESHOLD).
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD: libc::c_int = 64 << 10;
/// Time until the memory of the start is not needed any more.
const FIRST_TRIM: Duration = Duration::from_secs(10);
/// Interval afterwards. The memory of a mass deletion is returned within this time.
const TRIM_INTERVAL: Duration = Duration::from_secs(60);

/// Limits the allocator to one arena: each short-lived thread would get its own, whose memory is hardly ever freed. Must be
/// called before a second thread exists.
pub fn set_malloc_options() {
    #[cfg(target_env = "gnu")]
    for (what, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD)] {
        // SAFETY: `mallopt` sets a number in the allocator; no other thread runs yet. A refusal only costs memory.
        let _ = unsafe { libc::mallopt(what, value) };
    }
}

/// Returns free heap pages to the kernel periodically: the allocator itself returns only the top of the heap. Never returns.
pub async fn trim_periodically() {
    sleep(FIRST_TRIM).await;
    loop {
        #[cfg(target_env = "gnu")]
        // SAFETY: `malloc_trim` is thread-safe and releases only free pages.
        let _ = unsafe { libc::malloc_trim(0) };
        sleep(TRIM_INTERVAL).await;
    }
}
