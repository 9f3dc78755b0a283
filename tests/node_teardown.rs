//! The cases of `teardown` on the API server in memory, and those that need its faults.

#![allow(
    clippy::disallowed_methods,
    reason = "tests work in places of their own, and remove what they made"
)]

#[path = "teardown/cases.rs"]
mod cases;
#[path = "teardown/faults.rs"]
mod faults;
#[path = "teardown/service.rs"]
mod service;

use std::process::ExitCode;

use testbed::apiserver::{Config, MemApiServer};

fn main() -> anyhow::Result<ExitCode> {
    let mut all = cases::cases();
    all.extend(faults::cases());
    all.extend(service::cases());
    cases::main(
        || Box::pin(async { Ok(MemApiServer::start(Config::default()).await?) }),
        all,
    )
}
