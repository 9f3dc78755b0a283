//! All scenarios.

mod ends;
mod hooks;
mod init;
mod starts;
mod surroundings;

use crate::scenario::Scenario;
pub use surroundings::SETTINGS;

pub fn all() -> Vec<Scenario> {
    [
        ends::scenarios(),
        starts::scenarios(),
        init::scenarios(),
        hooks::scenarios(),
        surroundings::scenarios(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
