//! The claims of `teardown` on etcd and kube-apiserver: the agent has a node's rights and no more.

#![allow(
    clippy::disallowed_methods,
    reason = "tests work in places of their own, and remove what they made"
)]

#[path = "teardown/cases.rs"]
mod cases;
#[path = "teardown/certificates.rs"]
mod certificates;
#[path = "teardown/outside.rs"]
mod outside;

use std::process::ExitCode;

use testbed::control_plane::ControlPlane;

fn main() -> anyhow::Result<ExitCode> {
    let mut cases = cases::cases();
    cases.splice(..0, certificates::cases());
    cases.extend(outside::cases());
    cases::main(|| Box::pin(ControlPlane::start()), cases)
}
