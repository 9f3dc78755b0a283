//! Runs the claims, each as a test with its name, several at a time.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::future::BoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
use testbed::{
    api::ApiServer,
    stage::{AgentProcess, Stage},
};
use tokio::{runtime::Runtime, sync::OnceCell, time};

use super::{
    Case, StageKind,
    scene::{Scene, agent_on},
};

/// The slowest claims wait for one or two grace periods, or for five minutes after a boot. The rest is for a busy machine.
const LIMIT: Duration = Duration::from_secs(600);
/// Claims mostly wait.
const AT_ONCE: usize = 8;

/// Starts the API server that all stages share.
pub type Server<S> = fn() -> BoxFuture<'static, Result<S>>;

/// Shared state of the claims.
struct World<S> {
    shared: OnceCell<(Arc<AgentProcess>, Arc<Stage>)>,
    server: OnceCell<Arc<S>>,
    start: Server<S>,
    nodes: AtomicUsize,
    namespaces: AtomicUsize,
}

/// The main function of a test binary.
pub fn main<S: ApiServer + 'static>(start: Server<S>, cases: Vec<Case<S>>) -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let runtime = Arc::new(Runtime::new().context("starting the runtime")?);
    let world = Arc::new(World {
        shared: OnceCell::new(),
        server: OnceCell::new(),
        start,
        nodes: AtomicUsize::new(0),
        namespaces: AtomicUsize::new(0),
    });
    let trials = cases.into_iter().map(|case| {
        let (world, runtime) = (Arc::clone(&world), Arc::clone(&runtime));
        Trial::test(case.name, move || {
            let checked = runtime.block_on(world.check(&case));
            checked.map_err(|error| Failed::from(format!("{error:#}")))
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // The exit code is returned: stages must be dropped before the exit, and their clients need the runtime.
    runtime.block_on(async {
        let world = Arc::into_inner(world).context("a claim goes on after its end")?;
        world.end().await
    })?;
    Ok(if conclusion.has_failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

// === impl World ===

impl<S: ApiServer + 'static> World<S> {
    async fn check(&self, case: &Case<S>) -> Result<()> {
        let server = self.server().await?;
        let (stage, agent) = match case.stage_kind {
            StageKind::Own => (Arc::new(self.stage().await?), None),
            StageKind::Shared => {
                let (agent, stage) = self.shared().await?;
                (stage, Some(agent))
            }
        };
        let namespace = format!("case-{}", self.namespaces.fetch_add(1, Ordering::Relaxed));
        let mut scene = Scene::new(stage, agent, namespace).await?;
        let checked = time::timeout(LIMIT, (case.check)(&mut scene, &server)).await;
        match checked.context("it is not decided in time").and_then(|checked| checked) {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(scene.explain().await).context("it does not hold")),
        }
    }

    /// The shared agent must exit successfully, too.
    async fn end(self) -> Result<()> {
        let Some((agent, _stage)) = self.shared.into_inner() else {
            return Ok(());
        };
        let agent = Arc::into_inner(agent).context("a claim still has the agent")?;
        let code = agent.stop().await?;
        ensure!(code == Some(0), "the agent ended with {code:?}");
        Ok(())
    }

    async fn server(&self) -> Result<Arc<S>> {
        let start = || async { Ok(Arc::new((self.start)().await?)) };
        self.server.get_or_try_init(start).await.cloned()
    }

    async fn stage(&self) -> Result<Stage> {
        let node = format!("node-{}", self.nodes.fetch_add(1, Ordering::Relaxed));
        Stage::set_on(Box::new(self.server().await?), &node).await
    }

    async fn shared(&self) -> Result<(Arc<AgentProcess>, Arc<Stage>)> {
        let set = || async {
            let stage = self.stage().await?;
            let agent = agent_on(&stage).await?;
            Ok((Arc::new(agent), Arc::new(stage)))
        };
        self.shared.get_or_try_init(set).await.cloned()
    }
}
