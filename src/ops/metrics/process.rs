//! Metrics of the agent's process, with the names that Prometheus' client libraries use. No prefix.

use std::{fs, time::Duration};

use jiff::Timestamp;
use nix::{
    time::{ClockId, clock_gettime},
    unistd::{SysconfVar, sysconf},
};
use prometheus_client::metrics::counter::ConstCounter;
use rustix::process::{Resource, getrlimit};

use super::family::{Metrics, since_epoch};

/// The families of this process. A value that cannot be read has no sample.
pub(super) fn register(metrics: &mut Metrics<'_>, started: Option<Timestamp>) {
    let cpu = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID);
    let page_size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    let page_size = page_size.and_then(|size| u64::try_from(size).ok());
    // proc(5): total and resident size, in pages.
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut sizes = statm
        .split(' ')
        .map(|pages| Some(pages.parse::<u64>().ok()? * page_size?));
    // The directory itself is one of them.
    let open = fs::read_dir("/proc/self/fd").map(|fds| (fds.count() as u64).saturating_sub(1));
    metrics.seconds("process_start_time", since_epoch(started));
    if let Ok(cpu) = cpu {
        let seconds = Duration::from(cpu).as_secs_f64();
        metrics.register_seconds("process_cpu", ConstCounter::new(seconds));
    }
    for (name, value) in [
        ("process_virtual_memory_bytes", sizes.next().flatten()),
        ("process_resident_memory_bytes", sizes.next().flatten()),
        ("process_open_fds", open.ok()),
        ("process_max_fds", getrlimit(Resource::Nofile).current),
    ] {
        value.into_iter().for_each(|value| metrics.gauge(name, value));
    }
}
