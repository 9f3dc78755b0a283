//! What the claims share.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use futures::future::LocalBoxFuture;
use testbed::claims::{self, Claim, Limits};
use tokio::sync::OnceCell;

use crate::{cluster::Cluster, scene::Scene};

const LIMITS: Limits = Limits {
    // Claims mostly wait.
    at_once: 12,
    // The slowest wait twice for a minute and a half; the rest is for a machine under load.
    time: Duration::from_secs(420),
};

/// A control plane for all that only need a namespace of their own.
#[derive(Default)]
pub struct Shared {
    cluster: OnceCell<Arc<Cluster>>,
    namespaces: AtomicUsize,
}

/// The main function of the test binary.
pub fn main(claims: Vec<Claim<Shared>>) -> Result<ExitCode> {
    claims::run(&LIMITS, Shared::default(), claims, async |shared| {
        match shared.cluster.into_inner() {
            None => Ok(()),
            Some(cluster) => {
                Arc::into_inner(cluster)
                    .context("a claim still has the cluster")?
                    .leave()
                    .await
            }
        }
    })
}

impl Shared {
    /// Checks a claim in a namespace beside others.
    pub async fn check(&self, check: for<'s> fn(&'s Scene) -> LocalBoxFuture<'s, Result<()>>) -> Result<()> {
        let open = || async { Ok::<_, anyhow::Error>(Arc::new(Cluster::open().await?)) };
        let cluster = self.cluster.get_or_try_init(open).await?;
        let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
        let scene = Scene::new(Arc::clone(cluster), format!("claim-{number}")).await?;
        cluster.during(check(&scene)).await
    }
}
