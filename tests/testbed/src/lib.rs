//! What pod-teardown is tested, shown and measured on.

pub mod api;
pub mod apiserver;
pub mod bench;
pub mod bench_gc;
pub mod cgroups;
pub mod command;
pub mod containerd;
pub mod contract;
pub mod control_plane;
pub mod demo;
pub mod dice;
pub mod family;
pub mod ground;
pub mod http2;
pub mod kubelet;
pub mod leftovers;
pub mod mounts;
pub mod node_object;
pub mod pods;
pub mod proto;
pub mod rest;
pub mod scripted_cri;
pub mod stage;
pub mod straight;
pub mod things;
pub mod wait;
