//! The benchmarks: what the agent costs, against direct calls, a kubelet and kube-controller-manager.
//!
//! `docs/explanation/benchmarks.md` has the figures.

#![allow(clippy::print_stdout, reason = "this is the bench's output")]

pub mod gc;
mod gc_cluster;
mod http2;
pub mod idle;
pub mod pods;
mod pods_round;
pub mod table;
mod usage;

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};

use crate::command;

pub use table::{Figures, Table};

/// Number of processors, and load average of the last minute.
fn machine() -> Result<String> {
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").context("read /proc/loadavg")?;
    let load = load.split(' ').next().unwrap_or_default();
    Ok(format!("{processors} processors, load {load}"))
}

/// The program as given, else the one of this name beside the running one.
fn program(given: Option<&PathBuf>, name: &str) -> Result<PathBuf> {
    let path = command::beside(given.cloned(), name)?;
    ensure!(path.is_file(), "there is no {}: build it first", path.display());
    Ok(path)
}
