//! The collector against an in-memory API server, on a paused clock.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod aggregated;
mod busy;
mod cascades;
mod closed_watches;
mod defects;
mod half_open;
mod pages;
mod random;
mod reports;
mod request_limit;
mod safety;
mod scenarios;
mod things;
mod unreadable;
mod world;
