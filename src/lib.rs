//! Takes Kubernetes pods down the way the kubelet does, straight against the container runtime.
//!
//! A pod: `watch → workers → teardown {hooks, containers, sandbox, devices, status, volumes, cgroup, final delete}`.
//! Leftovers of other pods: `housekeeping → workers`. The decision whether any of this may happen: `handover`.
//!
//! An object with owners: `collector {leader election, discovery, monitors, graph, decide, queue}`.
//!
//! Without the feature `agent` it is a library for other node agents: see [`engine`].
//!
//! A module uses only modules of lower layers: `tests/layers.rs` has their order.

/// Where the package installs the documentation.
#[cfg(feature = "agent")]
pub const INSTALLED_DOCS: &str = "/usr/share/doc/pod-teardown/docs";
/// Where the documentation is if it is not installed: in the repository that Cargo.toml names, else in the source tree.
#[cfg(feature = "agent")]
pub const DOCS_URL: &str = if env!("CARGO_PKG_REPOSITORY").is_empty() {
    "docs"
} else {
    concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs")
};

#[cfg(feature = "agent")]
pub mod agent;
#[cfg(feature = "agent")]
pub mod cluster_view;
#[cfg(feature = "agent")]
pub mod ops;

#[cfg(feature = "agent")]
pub mod config;

#[cfg(feature = "agent")]
pub mod cli;

#[cfg(feature = "agent")]
pub mod collector;

#[cfg(feature = "agent")]
pub mod housekeeping;

#[cfg(feature = "agent")]
pub mod observe;

#[cfg(feature = "agent")]
pub mod workers;

#[cfg(feature = "agent")]
pub mod watch;

#[cfg(feature = "agent")]
pub mod handover;

#[cfg(feature = "agent")]
pub mod counters;
#[cfg(feature = "agent")]
pub mod events;
#[cfg(feature = "agent")]
pub mod otlp;

#[cfg(feature = "agent")]
pub mod api;
#[cfg(feature = "agent")]
pub mod outside;

pub mod engine;
pub mod journal;

pub mod teardown;

pub mod trace_context;
pub mod trace_recorder;

pub mod node;

pub mod model;

pub mod clock;
#[cfg(feature = "agent")]
pub mod explanation;
pub mod histogram;
#[cfg(feature = "agent")]
pub mod memory;
#[cfg(feature = "agent")]
pub mod object_name;
#[cfg(feature = "agent")]
pub(crate) mod tasks;
pub mod why;
pub mod words;
