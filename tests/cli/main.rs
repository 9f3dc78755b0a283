//! The command line of the real binary: flags, errors, remedies and exit codes.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod command;

mod check;
mod collector;
mod environment;
mod flags;
mod holds;
mod hostile;
mod kubectl;
mod memory;
#[cfg(feature = "system-tests")]
mod mount_namespace;
mod output;
mod run;
mod safety;
mod service;
mod stop;
mod timeline;
