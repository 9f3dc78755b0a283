//! A control plane with all controllers of kube-controller-manager except its garbage collector, which the agent
//! replaces.

use anyhow::Result;
use testbed::{
    api::ApiServer as _,
    control_plane::{ControlPlane, ControllerManager, Settings},
    rest::Client,
};

use crate::agent::{Agent, account};

/// See the module's documentation.
pub struct Cluster {
    pub agent: Agent,
    pub admin: Client,
    controllers: ControllerManager,
    // Dropped last: the others send requests until they end.
    _plane: ControlPlane,
}

impl Cluster {
    /// Starts everything; returns once the agent is synced.
    pub async fn open() -> Result<Self> {
        let plane = ControlPlane::start().await?;
        let settings = Settings::all_but_the_collector().without_limits();
        let controllers = plane.start_controllers(&settings).await?;
        let mut agent = Agent::start(&account(&plane).await?, "always")?;
        agent.until_synced().await?;
        Ok(Self {
            agent,
            admin: plane.admin()?,
            controllers,
            _plane: plane,
        })
    }

    /// Runs `work`. If it fails, the error has the ends of all logs.
    pub async fn during<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.controllers.during(self.agent.during(work)).await
    }

    /// The agent must exit with 0 here as well.
    pub async fn leave(self) -> Result<()> {
        self.agent.stop().await
    }
}
