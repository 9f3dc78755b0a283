//! The claims of `teardown` on the API server in memory.

#[path = "teardown/cases.rs"]
mod cases;

use std::process::ExitCode;

use testbed::apiserver::{Config, MemApiServer};

fn main() -> anyhow::Result<ExitCode> {
    cases::main(
        || Box::pin(async { Ok(MemApiServer::start(Config::default()).await?) }),
        cases::cases(),
    )
}
