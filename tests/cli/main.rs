//! The command as people meet it: flags, mistakes, remedies and exit codes of the real binary.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod command;

mod check;
mod collector;
mod end;
mod environment;
mod flags;
mod held;
mod hostile;
mod memory;
mod output;
mod run;
mod safety;
mod service;
mod timeline;
#[cfg(feature = "system-tests")]
mod unshared;
