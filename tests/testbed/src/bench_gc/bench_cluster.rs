//! The control plane of all contenders, with one namespace and an account for each.

use std::cell::Cell;

use anyhow::{Context, Result, ensure};
use http::Method;
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use super::collector::{Contender, wait_until_idle};
use super::direct::{self, Pace};
use super::lists::{self, Lists};
use super::objects::Family;
use super::remaining;
use crate::api::{Access, ApiServer as _};
use crate::control_plane::ControlPlane;
use crate::http2::{Http2, PROTOBUF};

const NAMESPACE: &str = "bench-gc";
/// The rights of kube-controller-manager's garbage collector.
const ROLE: &str = "system:controller:generic-garbage-collector";
/// The flow schema of controllers' requests. Another one would change the results.
const FLOW_SCHEMA: &str = "kube-system-service-accounts";

/// Propagation policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Policy {
    /// After their owner.
    Background,
    /// Before their owner.
    Foreground,
}

/// Results of one collector for one family.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Cascade {
    /// Seconds from the owner's deletion until no dependent was left.
    pub seconds: f64,
    /// Dependents per second.
    pub rate: f64,
    /// Plain lists of all objects just before its start.
    pub lists: Lists,
    /// Seconds from its start until it was synced.
    pub start: f64,
    /// CPU seconds from the owner's deletion until it was idle.
    pub cpu: f64,
    /// Resident MiB before the deletion, when idle.
    pub resident: f64,
    /// Peak resident MiB before the deletion.
    pub peak_start: f64,
    /// Peak resident MiB after it.
    pub peak: f64,
}

/// The control plane and its accounts.
pub struct BenchCluster {
    plane: ControlPlane,
    admin: Http2,
    direct: Access,
    agent: Access,
    /// Names are not reused, so that a run leaves nothing for the next.
    runs: Cell<u32>,
}

// === impl Policy ===

impl Policy {
    /// Name in the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Background => "background",
            Self::Foreground => "foreground",
        }
    }
}

// === impl BenchCluster ===

impl BenchCluster {
    /// Starts a control plane.
    pub async fn start() -> Result<Self> {
        let plane = ControlPlane::start().await?;
        let namespace = json!({"metadata": {"name": NAMESPACE}});
        plane.admin()?.create("/api/v1/namespaces", &namespace).await?.ok()?;
        let direct = plane.account("direct-deletion", ROLE).await?;
        let agent = plane.account("pod-teardown", ROLE).await?;
        for access in [&direct, &agent] {
            let schema = plane.flow_schema(access).await?;
            ensure!(schema == FLOW_SCHEMA, "requests fall under the flow schema {schema}");
        }
        Ok(Self {
            admin: Http2::connect(&plane.administrator(), 4).await?,
            plane,
            direct,
            agent,
            runs: Cell::new(0),
        })
    }

    /// The agent's access.
    pub fn agent(&self) -> &Access {
        &self.agent
    }

    /// Runs direct deletion; returns dependents per second.
    pub async fn direct(&self, objects: u32, pace: Pace) -> Result<f64> {
        let family = self.family(objects, false).await?;
        let client = Http2::connect(&self.direct, pace.connections).await?;
        let begin = Instant::now();
        let elapsed = remaining::wait_until_left(&self.admin, &family.collection, objects, 0, begin);
        let ((), elapsed) = tokio::try_join!(direct::delete(&client, &family, pace.in_flight), elapsed)?;
        self.compact().await?;
        Ok(f64::from(objects) / elapsed.as_secs_f64())
    }

    /// Runs a collector's cascade.
    pub async fn cascade(&self, objects: u32, policy: Policy, contender: &Contender) -> Result<Cascade> {
        let family = self.family(objects, true).await?;
        let lists = self.lists().await?;
        let begin = Instant::now();
        let collector = contender.start(&self.plane).await?;
        let start = begin.elapsed().as_secs_f64();
        let usage = collector.usage()?;
        let collected = async {
            wait_until_idle(usage).await?;
            let resident = usage.resident()?;
            let peak_start = usage.peak()?;
            usage.forget_peak()?;
            let before = usage.cpu()?;
            let begin = Instant::now();
            delete(&self.admin, &family.owner_path(), policy).await?;
            // The owner counts: in foreground deletion it is the last one.
            let elapsed = remaining::wait_until_left(&self.admin, &family.collection, objects, 0, begin).await?;
            wait_until_idle(usage).await?;
            Ok(Cascade {
                lists,
                seconds: elapsed.as_secs_f64(),
                rate: f64::from(objects) / elapsed.as_secs_f64(),
                start,
                cpu: (usage.cpu()? - before).as_secs_f64(),
                resident,
                peak_start,
                peak: usage.peak()?,
            })
        };
        let cascade = collector.during(collected).await?;
        collector.stop().await?;
        self.compact().await?;
        Ok(cascade)
    }

    /// Plain lists of all objects, the faster of two ways. The first also warms the server up for the second.
    async fn lists(&self) -> Result<Lists> {
        let collections = lists::collections(&self.direct).await?;
        let one = lists::list(&self.direct, &collections, 1).await?;
        let several = lists::list(&self.direct, &collections, 4).await?;
        Ok(if one.seconds < several.seconds { one } else { several })
    }

    async fn family(&self, objects: u32, owned: bool) -> Result<Family> {
        let run = self.runs.get() + 1;
        self.runs.set(run);
        Family::create(&self.admin, NAMESPACE, &format!("run-{run}"), objects, owned).await
    }

    /// Compacts the store: deleted objects would slow the next run down.
    async fn compact(&self) -> Result<()> {
        self.plane.forget_history().await.context("compact the store")
    }
}

/// Deletes the owner at this path.
pub async fn delete(client: &Http2, owner: &str, policy: Policy) -> Result<()> {
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy});
    let answer = client.send(Method::DELETE, owner, PROTOBUF, options.to_string().into());
    answer.await?.ok().context("delete the owner")?;
    Ok(())
}
