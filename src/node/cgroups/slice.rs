//! Stops the systemd slices of pods.

use std::time::Duration;

use tokio::time::timeout;

use super::PodCgroup;
use crate::node::{
    checkpoint,
    effects::{Effects, Outcome},
    fault::{Cause, Fault},
    systemd::Systemd,
};

const VERB: &str = "stop slice";

/// A slice without processes stops in milliseconds. The kubelet uses the same timeout.
const LIMIT: Duration = Duration::from_secs(30);

/// Stops a pod's slice and waits for the job to finish. A slice that is not loaded counts as stopped.
pub(super) async fn stop(systemd: &Systemd, pod: &PodCgroup, effects: &Effects) -> Result<Outcome, Fault> {
    let (path, unit) = (pod.path(), pod.unit());
    let allowed = effects.allow(VERB, &path);
    allowed.map_err(|blocked| Fault::new(VERB, path, blocked))?;
    let stopped = timeout(LIMIT, effects.run_checked(systemd.stop_unit(unit, "replace"))).await;
    checkpoint::after(VERB, &path);
    let cause = match stopped {
        Ok(Ok(Ok(outcome))) => return Ok(outcome),
        Ok(Ok(Err(error))) => Cause::Systemd(format!(
            "cannot call systemd over D-Bus: {error}; check `systemctl status dbus`"
        )),
        Ok(Err(blocked)) => blocked.into(),
        Err(_) => {
            systemd.disconnect().await;
            Cause::Systemd(format!(
                "systemd has not stopped it within {LIMIT:?}; check `systemctl list-jobs` and \
                 `systemctl status {unit}`"
            ))
        }
    };
    Err(Fault::new(VERB, path, cause))
}

#[cfg(test)]
mod tests;
