//! Takes Kubernetes pods down the way the kubelet does, straight against the container runtime.
//!
//! A pod: `watch → workers → teardown {hooks, containers, sandbox, devices, status, volumes, cgroup, final delete}`.
//! What it left behind: `housekeeping → workers`. Whether any of this may happen: `handover`.
//!
//! An object with owners: `collector {leader election, discovery, monitors, graph, decide, queue}`.
//!
//! A module uses only those that stand after it in this list.

pub mod agent;
pub mod ops;

pub mod config;

pub mod cli;

pub mod collector;

pub mod housekeeping;

pub mod workers;

pub mod watch;

pub mod handover;

pub mod counters;
pub mod events;

pub mod api;
pub mod journal;
pub mod outside;

pub mod teardown;

pub mod quiet;
pub mod record;

pub mod node;

pub mod model;

pub mod clock;
pub mod memory;
pub mod object_name;
pub mod tasks;
pub mod why;
pub mod words;
