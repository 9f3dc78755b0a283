//! Completion of a run, and the checks after it.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    super::{
        ask::{Cause, REASON},
        checks,
        everything::{POD, everything},
        fault::Fault,
        history::History,
        shared_stage::SharedStage,
    },
    Run, grace,
    harm::Pending,
};

impl Run {
    /// The object is deleted, nothing is left on the node, and the agent watches again.
    pub(super) async fn is_over(&mut self) -> Result<bool> {
        let now = Instant::now();
        if now < self.next_look || !matches!(self.later, Pending::Nothing) || !self.watches() {
            return Ok(false);
        }
        let often = Duration::from_millis(if self.finished { 100 } else { 500 });
        self.next_look = now + often;
        if !self.deleted && self.is_evicted().await? {
            self.delete().await?;
        }
        if self.successor.is_none() {
            if self.scene.stage.admin.get(&self.scene.path(POD)).await?.code() != 404 {
                return Ok(false);
            }
            self.successor = Some(self.succeed().await?);
        }
        if !self.finished && !self.struck {
            return Ok(false);
        }
        let left = self.scene.stage.leftovers(std::slice::from_ref(&self.pod)).await?;
        Ok(left.is_empty())
    }

    /// The pod has failed, and only what is kept until its deletion is left.
    async fn is_evicted(&mut self) -> Result<bool> {
        if let Some(eviction) = &mut self.eviction
            && eviction.is_refused()?
        {
            self.request_eviction()?;
        }
        let object = self.scene.stage.admin.get(&self.scene.path(POD)).await?;
        if object.code() == 404 {
            return Ok(false);
        }
        let status = object.ok()?["status"].take();
        if status["phase"] != "Failed" || status["reason"] != REASON {
            return Ok(false);
        }
        let left = self.scene.stage.leftovers(std::slice::from_ref(&self.pod)).await?;
        Ok(["process", "mount", "cgroup"].iter().all(|kind| !left.has(kind)))
    }

    /// Creates another pod with the same name on the same node: later requests of the agent must not affect it.
    pub(super) async fn succeed(&self) -> Result<Value> {
        let mut successor = everything(Duration::from_secs(30));
        successor["metadata"]["namespace"] = self.scene.namespace.as_str().into();
        successor["spec"]["nodeName"] = self.scene.stage.node.as_str().into();
        Ok(self.scene.stage.admin.create_pod(&successor).await?)
    }

    pub(super) async fn finish(&mut self, shared: &SharedStage, history: History) -> Result<()> {
        // No agent is stopped any more.
        self.gate.close();
        let agent = self.agent.take().context("no agent runs")?;
        let log = agent.log();
        agent.stop().await?;
        ensure!(!log.contains("panicked"), "something panicked; see its log");
        let answer = self.scene.stage.admin.get(&self.scene.path(POD)).await?;
        let successor = answer.ok().unwrap_or_default();
        ensure!(
            Some(&successor) == self.successor.as_ref(),
            "invariant 2: the successor of the same name was changed to {successor}"
        );
        let grace = grace(self.strike.as_ref());
        let struck = self.strike.as_ref().map(|strike| strike.fault);
        let history_end = history.end().await?;
        if !struck.is_some_and(Fault::deletes_object) {
            let shim_held = checks::shim_was_held(&self.scene.stage, &self.pod)?;
            checks::exited_correctly(&history_end, &self.begun, grace, struck, shim_held)?;
            let reason = &history_end.last()["status"]["reason"];
            ensure!((self.cause == Cause::Evicted) == (reason == REASON), "reason {reason}");
        }
        let once = struck.is_none();
        self.storage.is_released(&self.scene.stage, &self.drivers, once).await?;
        let log = self.scene.stage.containerd.workspace().dir().join("agent/log");
        let log = fs::read_to_string(log).unwrap_or_default();
        let mut of_pod = log.lines().filter(|line| line.contains(&self.scene.namespace));
        let has_failed = of_pod.any(|line| line.contains("preStop hook failed"));
        checks::hook_ran(
            &self.scene.logged(POD),
            &history_end,
            &self.begun,
            grace,
            struck,
            has_failed,
        )?;
        let data = fs::read_to_string(self.kept.join("data")).unwrap_or_default();
        ensure!(data == "precious", "invariant 6: what a link leads to was removed");
        shared.other_pods_are_unchanged(&self.scene.stage).await?;
        let deleted = self.scene.stage.admin.delete_pod(&self.scene.namespace, POD, Some(0));
        deleted.await?;
        Ok(())
    }
}
