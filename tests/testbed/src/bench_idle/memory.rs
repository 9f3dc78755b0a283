//! Resident memory of a process, by kind.

use std::fs;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::bench::usage::mib;

/// Values in MiB.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Memory {
    /// All resident pages.
    pub resident: f64,
    /// Proportional set size: shared pages count in part.
    pub proportional: f64,
    /// Anonymous pages: heap, stacks and modified data.
    pub anonymous: f64,
}

// === impl Memory ===

impl Memory {
    /// Reads the memory of the process with this PID.
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/smaps_rollup");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        Self::read(&text).with_context(|| format!("read {path}"))
    }

    fn read(rollup: &str) -> Result<Self> {
        let mib = |key| mib(rollup, key);
        Ok(Self {
            resident: mib("Rss")?,
            proportional: mib("Pss")?,
            anonymous: mib("Anonymous")?,
        })
    }

    /// Pages of the program and its libraries.
    pub fn of_files(self) -> f64 {
        self.resident - self.anonymous
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_values_are_read_in_mebibytes() {
        let rollup = "00400000-7fff0000 ---p 00000000 00:00 0  [rollup]\n\
                      Rss:               14336 kB\nPss:               12288 kB\nPss_Dirty:          1024 kB\n\
                      Anonymous:          4096 kB\nAnonHugePages:         0 kB\n";
        let memory = Memory::read(rollup).unwrap();
        assert_eq!(
            memory,
            Memory {
                resident: 14.0,
                proportional: 12.0,
                anonymous: 4.0
            }
        );
        assert!((memory.of_files() - 10.0).abs() < f64::EPSILON);
        assert!(Memory::read("Rss: 1 kB\n").unwrap_err().to_string().contains("no Pss"));
    }

    #[test]
    fn this_process_is_in_memory() {
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.resident >= memory.proportional && memory.anonymous > 0.0);
    }
}
