//! Checks of a pod's volume and device, during and after every run.
//!
//! A volume may be attached elsewhere once it has left the node's `volumesInUse`, and a device may be allocated again
//! once the pod is shown as terminated. Both require that their drivers have released them.

use std::path::Path;

use anyhow::{Result, ensure};
use testbed::{
    drivers::{DraCall, DraService},
    stage::Stage,
};

use super::{
    drivers::{Drivers, Storage},
    everything::POD,
    point::Step,
};

/// Name of the step that removes a volume from `volumesInUse`.
const NODE_STATUS: &str = "status of the node";

/// Whether the step concerns volumes or devices.
pub fn is_step(step: &Step) -> bool {
    step.verb.starts_with("Node") || step.is("PATCH", NODE_STATUS)
}

impl Storage {
    /// Step names of its resources.
    pub fn names(&self, node: &str) -> Vec<(String, &'static str)> {
        vec![
            (parent(&self.staging).display().to_string(), "STAGED"),
            (self.volume.clone(), "PV"),
            (self.claim.1.clone(), "CLAIM"),
            (format!("{}/{}", self.pod.0, self.claim.0), "claim"),
            (format!("/api/v1/nodes/{node}/status"), NODE_STATUS),
        ]
    }

    /// Checks before a step that affects or depends on it, so that an error is seen before it is repaired.
    pub async fn may_be_done(&self, step: &Step, stage: &Stage, drivers: &Drivers) -> Result<()> {
        let may_be_detached = step.is("PATCH", NODE_STATUS) || !self.is_in_use(stage).await?;
        self.is_in_order(may_be_detached, stage, drivers).await
    }

    async fn is_in_order(&self, may_be_detached: bool, stage: &Stage, drivers: &Drivers) -> Result<()> {
        if may_be_detached {
            let mounted = self.mounted()?;
            ensure!(
                mounted.is_empty(),
                "a volume may be detached that is mounted on {mounted:?}"
            );
            let asked = self.volumes_asked(drivers);
            ensure!(
                asked.contains(&self.unstage()),
                "a volume may be detached of which its driver was asked only {asked:?}"
            );
        }
        if self.is_shown_to_have_ended(stage).await? {
            ensure!(
                !self.is_in_use(stage).await?,
                "the pod is shown to have ended while its volume is in use"
            );
            let asked = self.claims_asked(drivers);
            ensure!(
                !asked.is_empty(),
                "the pod is shown to have ended while its device is prepared"
            );
        }
        Ok(())
    }

    /// At the end: the drivers got exactly the expected calls, and nothing is left. `once` if no call had to be repeated.
    pub async fn is_released(&self, stage: &Stage, drivers: &Drivers, once: bool) -> Result<()> {
        self.is_in_order(true, stage, drivers).await?;
        ensure!(!self.is_in_use(stage).await?, "the volume is still in use");
        // The pod's own directory is checked with the rest of the pod.
        let staged = parent(&self.staging);
        ensure!(!staged.exists(), "of the volume is left {}", staged.display());

        let volumes = self.volumes_asked(drivers);
        ensure!(
            are_asked(&volumes, &[self.unpublish(), self.unstage()], once),
            "of the volume's driver was asked {volumes:?}"
        );
        let (name, uid) = self.claim.clone();
        let unprepare = DraCall {
            service: DraService::V1,
            claims: vec![(self.pod.0.clone(), name, uid)],
        };
        let claims = self.claims_asked(drivers);
        ensure!(
            are_asked(&claims, &[unprepare], once),
            "of the device's driver was asked {claims:?}"
        );
        Ok(())
    }

    /// For a pod that keeps running: all is unchanged. The calls of its drivers are checked elsewhere.
    pub async fn is_unchanged(&self, stage: &Stage) -> Result<()> {
        ensure!(
            self.is_in_use(stage).await?,
            "{} was taken out of use",
            self.unique_name()
        );
        let mounted = self.mounted()?;
        ensure!(mounted.len() == 2, "{} is only mounted on {mounted:?}", self.volume);
        Ok(())
    }

    async fn is_shown_to_have_ended(&self, stage: &Stage) -> Result<bool> {
        let (namespace, uid) = &self.pod;
        let path = format!("/api/v1/namespaces/{namespace}/pods/{POD}");
        let pod = stage.admin.get(&path).await?.ok().unwrap_or_default();
        let is_terminal = matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
        Ok(pod["metadata"]["uid"] == uid.as_str() && is_terminal)
    }
}

/// A volume's directory among the staged ones, by which a kubelet would find it again.
fn parent(staging: &Path) -> &Path {
    staging.parent().unwrap_or(staging)
}

/// Whether a driver got these calls in this order, and no others. A call may be repeated, from the first or from the last
/// one.
fn are_asked<C: PartialEq>(calls: &[C], expected: &[C], once: bool) -> bool {
    if once {
        return calls == expected;
    }
    let firsts = expected.iter().map(|it| calls.iter().position(|call| call == it));
    let firsts: Option<Vec<_>> = firsts.collect();
    firsts.is_some_and(|firsts| firsts.is_sorted()) && calls.iter().all(|call| expected.contains(call))
}
