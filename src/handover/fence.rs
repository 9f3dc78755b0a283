//! Stops a kubelet that does not work with `--fence-kubelet`. It stops the systemd unit, so that systemd does not restart it.

use std::time::Duration;

use tokio::time::timeout;

use crate::{
    node::{
        kubelet_process::{KubeletProcess, MatchReason},
        systemd::Systemd,
    },
    why::Why,
};

/// Longer than the usual `TimeoutStopSec=` (90 s) and the SIGKILL after it.
const LIMIT: Duration = Duration::from_secs(180);

/// Stops the systemd service whose main process is this kubelet, or was, if the service waits to start it again. Returns the
/// unit's name. A queued job of the unit, such as a restart, stays queued. The process probe detects the exit.
///
/// # Errors
/// When the kubelet is not the main process of a service, or systemd does not stop the unit.
pub(super) async fn stop(systemd: &Systemd, kubelet: &KubeletProcess) -> Result<String, Why> {
    if kubelet.is_wrapper || kubelet.why != MatchReason::SameDirectory {
        let why = format!("{kubelet} is more, or less, than this node's kubelet: stop it by hand");
        return Err(why.into());
    }
    let unit = match systemd.service_of_process(kubelet.pid).await {
        Ok(None) => systemd.service_that_restarts(kubelet.pid).await,
        unit => unit,
    };
    let unit = unit.map_err(|error| {
        let why = "systemd does not answer over D-Bus which unit the kubelet is of";
        Why::from(format!("{why}: {error}"))
    })?;
    let Some(unit) = unit else {
        let why = "is not the main process of a systemd service, so this agent cannot stop it: stop it by hand";
        return Err(format!("{kubelet} {why}").into());
    };
    tracing::warn!(unit, %kubelet, "Kubelet does not work; its unit is stopped (--fence-kubelet)");
    match timeout(LIMIT, systemd.stop_unit(&unit, "fail")).await {
        Ok(Ok(_)) => Ok(unit),
        Ok(Err(error)) => Err(format!("systemd does not stop {unit}: {error}").into()),
        Err(_) => {
            systemd.disconnect().await;
            Err(format!(
                "systemd has not stopped {unit} within {LIMIT:?}: does its process hang in the kernel? See systemctl status \
                 {unit}"
            ).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::systemd::tests::double::{Behavior, bus};

    fn kubelet() -> KubeletProcess {
        KubeletProcess {
            pid: 42,
            command: "/usr/bin/kubelet".into(),
            why: MatchReason::SameDirectory,
            is_wrapper: false,
        }
    }

    #[tokio::test]
    async fn only_the_service_whose_main_process_is_the_kubelet_is_stopped() {
        const NO_SERVICE: &str = "not the main process of a systemd service";
        let ours = kubelet();
        let k3s = KubeletProcess {
            is_wrapper: true,
            ..kubelet()
        };
        let elsewhere = KubeletProcess {
            why: MatchReason::SameNode,
            ..kubelet()
        };
        let cases: [(&'static [Behavior], &KubeletProcess, Option<&str>); 8] = [
            (&[Behavior::Runs("kubelet.service", 42)], &ours, None),
            // It waits to start the kubelet again.
            (&[Behavior::AutoRestarts("kubelet.service", 42)], &ours, None),
            (
                &[Behavior::AutoRestarts("kubelet.service", 41)],
                &ours,
                Some(NO_SERVICE),
            ),
            // A login session, another service that has started a kubelet, a container.
            (&[Behavior::Runs("session-1.scope", 42)], &ours, Some(NO_SERVICE)),
            (&[Behavior::Runs("nodeadm.service", 7)], &ours, Some(NO_SERVICE)),
            (&[Behavior::NotLoaded], &ours, Some(NO_SERVICE)),
            (&[Behavior::Runs("k3s.service", 42)], &k3s, Some("kubelet")),
            (&[Behavior::Runs("kubelet.service", 42)], &elsewhere, Some("kubelet")),
        ];
        for (units, kubelet, refused) in cases {
            let dir = tempfile::tempdir().unwrap();
            let (systemd, asked) = bus(dir.path(), units);
            match (stop(&systemd, kubelet).await, refused) {
                (Ok(unit), None) => assert_eq!(unit, "kubelet.service"),
                (Err(error), Some(why)) => {
                    let error = error.to_string();
                    assert!(error.contains(why) && error.contains("stop it by hand"), "{error}");
                }
                (result, _) => panic!("{result:?}, {refused:?}"),
            }
            let is_stopped = asked.lock().unwrap().contains(&"StopUnit".to_owned());
            assert_eq!(is_stopped, refused.is_none(), "{refused:?}");
        }
    }

    #[tokio::test]
    async fn queued_restart_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (systemd, _) = bus(dir.path(), &[Behavior::Restarts("kubelet.service", 42)]);
        let error = stop(&systemd, &kubelet()).await.unwrap_err().to_string();
        assert!(error.contains("its restart is queued"), "{error}");
    }
}
