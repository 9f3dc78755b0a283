//! The collector against an in-memory API server, on a paused clock.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

/// Waits on the virtual clock until the condition holds.
macro_rules! until {
    ($holds:expr) => {
        $crate::cluster::until(stringify!($holds), async || $holds).await
    };
}

mod aggregated;
mod busy;
mod closed_watches;
mod cluster;
mod defects;
mod half_open;
mod pages;
mod prelude;
mod reports;
mod request_limit;
mod safety;
mod scenarios;
mod things;
mod unreadable;
