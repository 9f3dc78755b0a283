//! Test environments, demo and benchmarks of pod-teardown.

#![allow(missing_docs, reason = "only what a name does not say is documented")]

pub mod api;
pub mod apiserver;
pub mod balancer;
pub mod bench;
pub mod cgroups;
pub mod claims;
pub mod command;
pub mod containerd;
pub mod contract;
pub mod control_plane;
pub mod crictl;
pub mod demo;
pub mod dice;
pub mod direct_calls;
pub mod drivers;
mod grpc_socket;
pub mod host_files;
pub mod kubelet;
pub mod leftovers;
pub mod mounts;
pub mod network;
pub mod node_object;
pub mod otlp;
pub mod owner_references;
pub mod pods;
pub mod proto;
pub mod recorder;
pub mod rest;
pub mod schema;
mod script;
pub mod scripted_cri;
pub mod stage;
pub mod things;
pub mod wait;
pub mod workspace;
