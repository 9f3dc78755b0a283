//! The claims of `testbed::contract` on the API server in memory, which must behave like the real one.

use std::process::ExitCode;

use testbed::{
    apiserver::{Config, MemApiServer},
    contract::{self, Claims},
};

fn main() -> anyhow::Result<ExitCode> {
    contract::main(Claims::Common, || {
        Box::pin(async { Ok(MemApiServer::start(Config::default()).await?) })
    })
}
