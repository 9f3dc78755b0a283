//! Takes Kubernetes pods down the way the kubelet does, straight against the container runtime.
//!
//! The way of a pod, and of this list of modules:
//! `watch → workers → teardown {hooks, containers, sandbox, volumes, cgroups} → report {status, final delete}`
//!
//! The way of an object that is owned: `collector {leader_election, discovery, monitors, graph, queue}`.

pub mod cli;
pub mod config;

pub mod agent;
pub mod outside;

pub mod handover;

pub mod watch;

pub mod workers;

pub mod teardown;

pub mod housekeeping;

pub mod collector;

pub mod api;
pub mod clock;
pub mod counters;
pub mod events;
pub mod journal;
pub mod memory;
pub mod model;
pub mod node;
pub mod object_name;
pub mod quiet;
pub mod record;
pub mod tasks;
pub mod why;
pub mod words;

pub mod ops;
