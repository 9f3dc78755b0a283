//! Keeps the process small.

#![allow(
    unsafe_code,
    reason = "neither the C library's allocator nor the kernel has a safe way to be told"
)]

use std::{ptr, time::Duration};

use procfs::{
    ProcResult,
    process::{MMPermissions, MMapPath, MemoryMap, Process},
};
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
        if let Err(error) = let_go_of_the_program() {
            tracing::debug!(%error, "Pages of the program stay mapped");
        }
        sleep(SELDOM).await;
    }
}

/// Gives back what a node full of pods that ended has left: the allocator itself only cuts off the end.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` is thread-safe, and gives back only pages in which nothing is.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Unmaps the pages of the program and its libraries: with every one that is used the kernel maps its neighbours, and what a
/// start has used stays. Those that are needed come back from the page cache.
fn let_go_of_the_program() -> ProcResult<()> {
    let maps = Process::myself()?.smaps()?;
    for MemoryMap { address, .. } in maps.into_iter().filter(is_as_in_its_file) {
        let (Ok(from), Ok(to)) = (usize::try_from(address.0), usize::try_from(address.1)) else {
            continue;
        };
        // SAFETY: these pages are those of a file, to the last byte, and nobody can write to them: whoever reads them next
        // finds the same. Refused, it would only mean more memory.
        let _ = unsafe { libc::madvise(ptr::without_provenance_mut(from), to - from, libc::MADV_DONTNEED) };
    }
    Ok(())
}

/// Whether nothing is lost with these pages: they cannot be written to, and none was, not even by the loader.
fn is_as_in_its_file(map: &MemoryMap) -> bool {
    matches!(map.pathname, MMapPath::Path(_))
        && !map.perms.contains(MMPermissions::WRITE)
        && map.extension.map.get("Anonymous") == Some(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Vec<MemoryMap> {
        let maps = Process::myself().unwrap().smaps().unwrap().into_iter();
        let program = std::env::current_exe().unwrap();
        maps.filter(|map| matches!(&map.pathname, MMapPath::Path(path) if *path == program))
            .collect()
    }

    #[test]
    fn the_program_goes_on_without_the_pages_that_it_does_not_use() {
        // Of this much only what other tests use just now can come back meanwhile.
        let resident = || {
            program()
                .iter()
                .filter(|map| is_as_in_its_file(map))
                .map(|map| map.extension.map["Rss"])
                .sum::<u64>()
        };
        for map in program().iter().filter(|map| is_as_in_its_file(map)) {
            for at in (map.address.0..map.address.1).step_by(4096) {
                let at = ptr::with_exposed_provenance::<u8>(usize::try_from(at).unwrap());
                // SAFETY: it is mapped and readable; none of it is ever written to.
                std::hint::black_box(unsafe { at.read_volatile() });
            }
        }
        let before = resident();
        let_go_of_the_program().unwrap();
        let after = resident();
        assert!(after < before / 2, "{before} before, {after} after");
    }

    #[test]
    fn what_the_loader_has_written_to_stays() {
        let written = |map: &&MemoryMap| map.extension.map["Anonymous"] > 0;
        let program = program();
        let kept: Vec<_> = program.iter().filter(written).collect();
        assert!(!kept.is_empty() && !kept.into_iter().any(is_as_in_its_file));
        assert!(program.iter().any(is_as_in_its_file));
    }
}
