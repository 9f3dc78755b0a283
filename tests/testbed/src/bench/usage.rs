//! CPU time and memory of a process.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use nix::{time::ClockId, unistd::Pid};
use tokio::time::{Instant, sleep};

/// A process is idle if it uses less than this part of a processor in so many successive intervals.
const IDLE: f64 = 0.05;
const IDLE_INTERVALS: u32 = 4;
const INTERVAL: Duration = Duration::from_millis(250);
const IDLE_LIMIT: Duration = Duration::from_secs(300);

/// Fields of `/proc/PID/status`.
pub const RESIDENT: &str = "VmRSS";
pub const PEAK: &str = "VmHWM";
pub const ANONYMOUS: &str = "RssAnon";
pub const OF_FILES: &str = "RssFile";

/// A process, seen from outside.
#[derive(Debug, Clone, Copy)]
pub struct Usage(pub u32);

impl Usage {
    /// User and system time of all its threads so far, also of those that have ended.
    pub fn cpu(self) -> Result<Duration> {
        let pid = Pid::from_raw(i32::try_from(self.0)?);
        let time = ClockId::pid_cpu_clock_id(pid).and_then(ClockId::now);
        Ok(time
            .with_context(|| format!("read the CPU clock of process {pid}"))?
            .into())
    }

    /// The value of a field of its status, in MiB.
    pub fn mib(self, field: &str) -> Result<f64> {
        let path = format!("/proc/{}/status", self.0);
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
        Ok(kib.with_context(|| format!("no {field} in {path}"))? / 1024.0)
    }

    /// [`PEAK`] counts from now on.
    pub fn reset_peak(self) -> Result<()> {
        let path = format!("/proc/{}/clear_refs", self.0);
        fs::write(&path, "5").with_context(|| format!("write {path}"))
    }

    /// Waits until the process is idle, so that its usage is stable.
    pub async fn wait_until_idle(self) -> Result<()> {
        let begin = Instant::now();
        let mut idle = 0;
        while idle < IDLE_INTERVALS {
            ensure!(begin.elapsed() < IDLE_LIMIT, "not idle after {IDLE_LIMIT:?}");
            let (before, since) = (self.cpu()?, Instant::now());
            sleep(INTERVAL).await;
            let busy = (self.cpu()? - before).as_secs_f64() / since.elapsed().as_secs_f64();
            idle = if busy < IDLE { idle + 1 } else { 0 };
        }
        Ok(())
    }
}
