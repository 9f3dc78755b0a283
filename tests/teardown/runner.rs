//! What the claims share: the API server, and a node with its agent.

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
use testbed::{
    api::ApiServer,
    claims::{self, Claim, Limits},
    stage::{AgentProcess, Stage},
};
use tokio::{sync::OnceCell, time};

use super::{
    StageKind,
    scene::{Scene, agent_on},
};

/// The slowest claims wait for one or two grace periods, or for five minutes after a boot. The rest is for a busy machine.
const LIMIT: Duration = Duration::from_secs(600);
const LIMITS: Limits = Limits {
    // Claims mostly wait.
    at_once: 8,
    // Beyond the limit, failures are explained.
    time: LIMIT.saturating_add(Duration::from_secs(120)),
};

/// Starts the API server of all nodes.
pub type Server<S> = fn() -> LocalBoxFuture<'static, Result<S>>;

pub struct Shared<S> {
    node: OnceCell<(Arc<AgentProcess>, Arc<Stage>)>,
    server: OnceCell<Arc<S>>,
    start: Server<S>,
    nodes: AtomicUsize,
    namespaces: AtomicUsize,
}

/// The main function of a test binary.
pub fn main<S: ApiServer + 'static>(start: Server<S>, claims: Vec<Claim<Shared<S>>>) -> Result<ExitCode> {
    let shared = Shared {
        node: OnceCell::new(),
        server: OnceCell::new(),
        start,
        nodes: AtomicUsize::new(0),
        namespaces: AtomicUsize::new(0),
    };
    claims::run(&LIMITS, shared, claims, async |shared| {
        let Some((agent, _stage)) = shared.node.into_inner() else {
            return Ok(());
        };
        Arc::into_inner(agent)
            .context("a claim still has the agent")?
            .stop()
            .await
    })
}

impl<S: ApiServer + 'static> Shared<S> {
    pub async fn check(
        &self,
        kind: StageKind,
        check: for<'a> fn(&'a mut Scene, &'a S) -> LocalBoxFuture<'a, Result<()>>,
    ) -> Result<()> {
        let server = self.server().await?;
        let (stage, agent) = match kind {
            StageKind::Own => (Arc::new(self.stage().await?), None),
            StageKind::Shared => {
                let (agent, stage) = self.node().await?;
                (stage, Some(agent))
            }
        };
        let namespace = format!("case-{}", self.namespaces.fetch_add(1, Ordering::Relaxed));
        let mut scene = Scene::new(stage, agent, namespace).await?;
        let checked = time::timeout(LIMIT, check(&mut scene, &server)).await;
        match checked.context("it is not decided in time").flatten() {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(scene.explain().await).context("it does not hold")),
        }
    }

    async fn server(&self) -> Result<Arc<S>> {
        let start = || async { Ok(Arc::new((self.start)().await?)) };
        self.server.get_or_try_init(start).await.cloned()
    }

    async fn stage(&self) -> Result<Stage> {
        let node = format!("node-{}", self.nodes.fetch_add(1, Ordering::Relaxed));
        Stage::set_on(Box::new(self.server().await?), &node).await
    }

    async fn node(&self) -> Result<(Arc<AgentProcess>, Arc<Stage>)> {
        let set = || async {
            let stage = self.stage().await?;
            let agent = agent_on(&stage).await?;
            Ok((Arc::new(agent), Arc::new(stage)))
        };
        self.node.get_or_try_init(set).await.cloned()
    }
}
