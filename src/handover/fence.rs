//! Stops a kubelet that hangs, with `--fence-kubelet`: through its unit, so that nobody starts it again.

use std::time::Duration;

use tokio::time::timeout;

use crate::node::{
    kubelet_process::{KubeletProcess, Why},
    systemd::{Queued, Systemd},
};

/// A unit that ends neither by SIGTERM nor by the SIGKILL after its TimeoutStopSec= ends no more.
const LIMIT: Duration = Duration::from_secs(180);

/// Stops the service whose main process this kubelet is, and names it. That it has ended is for others to see. Where somebody
/// has asked systemd to restart it, say, that is what happens.
pub async fn stop(systemd: &Systemd, kubelet: &KubeletProcess) -> Result<String, String> {
    if kubelet.holds || kubelet.why != Why::SameDirectory {
        return Err(format!(
            "{kubelet} is more, or less, than this node's kubelet: stop it by hand"
        ));
    }
    let unit = systemd.service_of(kubelet.pid).await;
    let unit = unit.map_err(|error| format!("systemd cannot be asked over D-Bus for the kubelet's unit: {error}"))?;
    let Some(unit) = unit else {
        return Err(format!(
            "{kubelet} is not the main process of a service of systemd, which could be stopped: stop it by hand"
        ));
    };
    tracing::warn!(unit, %kubelet, "The kubelet is wedged: its unit is being stopped (--fence-kubelet)");
    match timeout(LIMIT, systemd.stop_unit(&unit, Queued::Stays)).await {
        Ok(Ok(_)) => Ok(unit),
        Ok(Err(error)) => Err(format!("systemd does not stop {unit}: {error}")),
        Err(_) => {
            systemd.forget().await;
            Err(format!(
                "systemd has not stopped {unit} within {LIMIT:?}: does its process hang in the kernel? See systemctl status \
                 {unit}"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::systemd::double::{Does, bus};

    fn kubelet() -> KubeletProcess {
        KubeletProcess {
            pid: 42,
            command: "/usr/bin/kubelet".into(),
            why: Why::SameDirectory,
            holds: false,
        }
    }

    #[tokio::test]
    async fn the_service_whose_main_process_it_is_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let (systemd, asked) = bus(dir.path(), &[Does::Runs("kubelet.service", 42)]);
        assert_eq!(stop(&systemd, &kubelet()).await, Ok("kubelet.service".to_owned()));
        assert!(asked.lock().unwrap().contains(&"StopUnit".to_owned()));
    }

    #[tokio::test]
    async fn the_restart_that_somebody_has_asked_for_is_not_undone() {
        let dir = tempfile::tempdir().unwrap();
        let (systemd, _) = bus(dir.path(), &[Does::Restarts("kubelet.service", 42)]);
        let told = stop(&systemd, &kubelet()).await.unwrap_err();
        assert!(told.contains("its restart is queued"), "{told}");
    }

    #[tokio::test]
    async fn a_unit_that_is_more_than_the_kubelet_is_left_alone_and_so_is_what_is_more_than_a_kubelet() {
        for (ways, why) in [
            // A shell that was left by somebody who logged in, a container, another service that has started one.
            (
                &[Does::Runs("session-1.scope", 42)][..],
                "not the main process of a service",
            ),
            (&[Does::Runs("nodeadm.service", 7)], "not the main process of a service"),
            (&[Does::KnowsNothing], "not the main process of a service"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (systemd, asked) = bus(dir.path(), ways);
            let told = stop(&systemd, &kubelet()).await.unwrap_err();
            assert!(told.contains(why) && told.contains("stop it by hand"), "{told}");
            assert!(!asked.lock().unwrap().contains(&"StopUnit".to_owned()));
        }
        let dir = tempfile::tempdir().unwrap();
        let (systemd, asked) = bus(dir.path(), &[Does::Runs("k3s.service", 42)]);
        let k3s = KubeletProcess {
            holds: true,
            ..kubelet()
        };
        let elsewhere = KubeletProcess {
            why: Why::SameMachine,
            ..kubelet()
        };
        for other in [k3s, elsewhere] {
            assert!(stop(&systemd, &other).await.unwrap_err().contains("stop it by hand"));
        }
        assert!(asked.lock().unwrap().is_empty());
    }
}
