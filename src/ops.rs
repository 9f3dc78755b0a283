//! Parts for operators: the admin socket and its client, `check`, texts of the verbs, metrics, logs and systemd.

pub mod admin;
pub mod check;
pub mod client;
pub mod gc_status;
pub mod holds;
pub mod journald;
pub mod logging;
pub mod manual;
pub mod metrics;
pub mod output;
mod progress;
mod remedies;
pub mod report;
pub mod service;
pub mod status;
pub mod stop;
pub mod timeline;
pub mod version;
pub mod why;

#[cfg(test)]
mod tests {
    mod schema;
}
