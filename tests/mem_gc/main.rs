//! The collector against an API server in memory, on a paused clock.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod aggregated;
mod busy;
mod cascades;
mod defects;
mod half_open;
mod liar;
mod pages;
mod random;
mod safety;
mod scenarios;
mod things;
mod world;
