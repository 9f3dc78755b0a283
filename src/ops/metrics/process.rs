//! Metrics of the agent's process, with the names that Prometheus' client libraries use. No prefix.

use std::{fmt, fs, time::Duration};

use jiff::Timestamp;
use nix::{
    time::{ClockId, clock_gettime},
    unistd::{SysconfVar, sysconf},
};
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use rustix::process::{Resource, getrlimit};

use super::page::{Page, since_epoch};

/// The process metrics. A value that cannot be read is `None` and has no sample.
#[derive(Debug, Default)]
pub struct ProcessMetrics {
    /// When the process started.
    pub started: Option<Timestamp>,
    /// CPU time of all threads.
    pub cpu: Option<Duration>,
    /// Virtual memory, in bytes.
    pub virtual_memory: Option<u64>,
    /// Resident memory, in bytes.
    pub resident_memory: Option<u64>,
    /// Open file descriptors.
    pub open_fds: Option<u64>,
    /// Limit of open file descriptors.
    pub max_fds: Option<u64>,
}

// === impl ProcessMetrics ===

impl ProcessMetrics {
    /// The metrics of this process, which started at `started`.
    pub fn read(started: Option<Timestamp>) -> Self {
        let cpu = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID);
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        let page = page.and_then(|page| u64::try_from(page).ok());
        // proc(5): total and resident size, in pages.
        let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let mut sizes = statm.split(' ').map(|pages| Some(pages.parse::<u64>().ok()? * page?));
        // The directory itself is one of them.
        let open = fs::read_dir("/proc/self/fd").map(|fds| (fds.count() as u64).saturating_sub(1));
        Self {
            started,
            cpu: cpu.ok().map(Duration::from),
            virtual_memory: sizes.next().flatten(),
            resident_memory: sizes.next().flatten(),
            open_fds: open.ok(),
            max_fds: getrlimit(Resource::Nofile).current,
        }
    }
}

impl Collector for ProcessMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        page.seconds(
            "process_start_time",
            "When the process started, as Unix time.",
            since_epoch(self.started),
        )?;
        page.seconds_counter("process_cpu", "CPU time of the process.", self.cpu)?;
        page.bytes(
            "process_virtual_memory",
            "Virtual memory of the process.",
            self.virtual_memory,
        )?;
        page.bytes(
            "process_resident_memory",
            "Resident memory of the process.",
            self.resident_memory,
        )?;
        page.optional_gauge("process_open_fds", "Open file descriptors.", self.open_fds)?;
        page.optional_gauge("process_max_fds", "Limit of open file descriptors.", self.max_fds)
    }
}
