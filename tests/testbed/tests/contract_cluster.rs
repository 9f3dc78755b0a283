//! The claims of `testbed::contract` on etcd and kube-apiserver, which are the reference.

use std::process::ExitCode;

use testbed::{
    contract::{self, Claims},
    control_plane::ControlPlane,
};

fn main() -> anyhow::Result<ExitCode> {
    contract::main(Claims::All, || Box::pin(ControlPlane::start()))
}
