//! The claims of `testbed::contract` on etcd and kube-apiserver, which are the reference.

use std::process::ExitCode;

use testbed::{
    contract::{self, CLAIMS, CLUSTER_CLAIMS},
    control_plane::ControlPlane,
};

fn main() -> anyhow::Result<ExitCode> {
    contract::main(&[CLAIMS, CLUSTER_CLAIMS], ControlPlane::start)
}
