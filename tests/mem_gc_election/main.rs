//! Leader election of collectors, with an in-memory API server, on a virtual clock.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]
#![allow(clippy::print_stdout, reason = "shown when a test fails: the seed that repeats it")]

mod cluster;

mod chaos;
mod hanging;
mod others;
mod passing_on;
mod rights;
