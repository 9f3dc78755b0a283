//! A control plane on which every controller of kube-controller-manager works but the collector, which is the agent.

use anyhow::Result;
use testbed::{
    api::ApiServer as _,
    control_plane::{ControlPlane, ControllerManager, Settings},
    rest::Client,
};

use crate::agent::{Agent, account};

/// See the module's documentation.
pub struct House {
    pub agent: Agent,
    pub admin: Client,
    controllers: ControllerManager,
    // The last to go: the others ask it to the end.
    _plane: ControlPlane,
}

// === impl House ===

impl House {
    /// Starts everything; the agent has seen all there is when this returns.
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

    /// What is done meanwhile; if it fails, the ends of all logs are told with it.
    pub async fn during<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.controllers.during(self.agent.during(work)).await
    }

    /// The agent that has collected so much has to end well, too.
    pub async fn leave(self) -> Result<()> {
        self.agent.stop().await
    }
}
