//! Runs the claims as tests, several at a time.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::{runtime::Runtime, sync::OnceCell, time};

use crate::{Check, Claim, cluster::Cluster, scene::Scene};

/// The slowest wait twice for a minute and a half; the rest is for a machine under load.
const LIMIT: Duration = Duration::from_secs(420);
/// Claims mostly wait.
const AT_ONCE: usize = 12;

/// State that claims share.
#[derive(Default)]
struct World {
    cluster: OnceCell<Arc<Cluster>>,
    scenes: AtomicUsize,
}

/// The main function of the test binary.
pub fn main(claims: Vec<Claim>) -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let runtime = Arc::new(Runtime::new().context("starting the runtime")?);
    let world = Arc::new(World::default());
    let trials = claims.into_iter().map(|claim| {
        let (world, runtime) = (Arc::clone(&world), Arc::clone(&runtime));
        Trial::test(claim.name, move || {
            let checked = runtime.block_on(world.check(&claim.check));
            checked.map_err(|error| Failed::from(format!("{error:#}")))
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // The exit code is returned: the control plane has to be dropped first, and its clients need the runtime.
    runtime.block_on(async {
        let world = Arc::into_inner(world).context("a claim goes on after its end")?;
        match world.cluster.into_inner() {
            None => Ok(()),
            Some(cluster) => {
                Arc::into_inner(cluster)
                    .context("a claim still has the house")?
                    .leave()
                    .await
            }
        }
    })?;
    Ok(if conclusion.has_failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

// === impl World ===

impl World {
    async fn check(&self, check: &Check) -> Result<()> {
        let checked = async {
            match check {
                Check::Own(check) => check().await,
                Check::Shared(check) => {
                    let cluster = self.cluster().await?;
                    let number = self.scenes.fetch_add(1, Ordering::Relaxed);
                    let scene = Scene::new(Arc::clone(&cluster), format!("claim-{number}")).await?;
                    cluster.during(check(&scene)).await
                }
            }
        };
        time::timeout(LIMIT, checked)
            .await
            .context("it is not decided in time")?
    }

    async fn cluster(&self) -> Result<Arc<Cluster>> {
        let open = || async { Ok(Arc::new(Cluster::open().await?)) };
        self.cluster.get_or_try_init(open).await.cloned()
    }
}
