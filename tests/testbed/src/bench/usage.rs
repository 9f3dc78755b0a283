//! Resource usage of a process: CPU time to the nanosecond, and resident memory.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::ClockId;
use nix::unistd::Pid;

/// A process that is watched from outside.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    pid: u32,
}

// === impl Usage ===

impl Usage {
    /// The process of this pid.
    pub fn of(pid: u32) -> Self {
        Self { pid }
    }

    /// User and system time of all its threads so far, also of those that have ended.
    pub fn cpu(self) -> Result<Duration> {
        let pid = Pid::from_raw(i32::try_from(self.pid)?);
        let clock = ClockId::pid_cpu_clock_id(pid).with_context(|| format!("find the CPU clock of process {pid}"))?;
        let time = clock
            .now()
            .with_context(|| format!("read the CPU clock of process {pid}"))?;
        Ok(Duration::from(time))
    }

    /// Resident memory now, in MiB.
    pub fn resident(self) -> Result<f64> {
        self.status("VmRSS")
    }

    /// Anonymous resident memory now, in MiB: heap, stacks and modified data.
    pub fn anonymous(self) -> Result<f64> {
        self.status("RssAnon")
    }

    /// Resident pages of files now, in MiB: the program and its libraries.
    pub fn of_files(self) -> Result<f64> {
        self.status("RssFile")
    }

    /// The most resident memory since [`Self::forget_peak`], in MiB.
    pub fn peak(self) -> Result<f64> {
        self.status("VmHWM")
    }

    /// Resets the peak.
    pub fn forget_peak(self) -> Result<()> {
        let path = format!("/proc/{}/clear_refs", self.pid);
        fs::write(&path, "5").with_context(|| format!("write {path}"))
    }

    fn status(self, key: &str) -> Result<f64> {
        let path = format!("/proc/{}/status", self.pid);
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        mib(&text, key).with_context(|| format!("read {path}"))
    }
}

/// The value of this line of a file of `/proc`, which is in kB, in MiB.
pub fn mib(text: &str, key: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    Ok(kib.with_context(|| format!("no {key}"))? / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_uses_time_and_memory() {
        let usage = Usage::of(std::process::id());
        let before = usage.cpu().unwrap();
        let sum: u64 = (0..2_000_000_u64).map(std::hint::black_box).sum();
        assert!(std::hint::black_box(sum) > 0);
        assert!(usage.cpu().unwrap() > before);
        // Read one after another, while other tests grow and shrink this process; the kernel counts to about a MiB.
        let agree = || {
            let (resident, peak) = (usage.resident().unwrap(), usage.peak().unwrap());
            let (anonymous, of_files) = (usage.anonymous().unwrap(), usage.of_files().unwrap());
            resident > 1.0
                && peak > resident - 1.0
                && anonymous > 0.1
                && of_files > 0.1
                && anonymous + of_files > resident - 1.0
        };
        assert!((0..1000).any(|_| agree()));
    }
}
