//! What most tests of this program use.

pub use std::{sync::Arc, time::Duration};

pub use serde_json::{Value, json};
pub use testbed::{
    apiserver::{
        Config, MemApiServer,
        faults::{Action, Fault},
    },
    balancer::Balancer,
    rest::Patch,
};
pub use tokio::time::{Instant, sleep};

pub use crate::{
    cluster::{
        Cluster, ObjectSpec, TEST_FINALIZER, absent_owner, map_path, owned, owners_of, secret_path, secs, to, until,
        with_finalizer,
    },
    things::Things,
};
