//! The state of a unit in systemd (org.freedesktop.systemd1(5)).

use std::collections::HashMap;

use jiff::Timestamp;
use nix::sys::signal::Signal;
use zbus::zvariant::{OwnedObjectPath, OwnedValue};

use super::{ON_MANAGER, PROPERTIES, SERVICE_INTERFACE, Systemd, UNIT_INTERFACE, call};
use crate::{
    model::kubelet_unit::{KubeletUnit, MainProcess, UnitExit},
    why::Why,
};

/// `ExecMainCode` of a process that has exited by itself (`CLD_EXITED` in waitid(2)); other codes are of signals.
const EXITED: i32 = 1;

// === impl Systemd ===

impl Systemd {
    /// The state of a kubelet's service; `None` if systemd knows no such unit.
    ///
    /// # Errors
    /// A message if systemd does not answer.
    pub async fn kubelet_unit(&self, unit: &str) -> Result<Option<KubeletUnit>, Why> {
        self.with_timeout(async {
            let connection = self.connection().await?;
            // GetUnit knows only loaded units, and an inactive one may be unloaded.
            let path: OwnedObjectPath = call(&connection, ON_MANAGER, "LoadUnit", &(unit,)).await?;
            let on_unit = (path.as_str(), PROPERTIES);
            let mut properties: Properties = call(&connection, on_unit, "GetAll", &(UNIT_INTERFACE,)).await?;
            if text(&properties, "LoadState") == "not-found" {
                return Ok(None);
            }
            let of_service: Properties = call(&connection, on_unit, "GetAll", &(SERVICE_INTERFACE,)).await?;
            properties.extend(of_service);
            Ok(Some(state(unit, &properties)))
        })
        .await
    }
}

type Properties = HashMap<String, OwnedValue>;

/// A property that an older systemd does not have is as if it were not set.
fn state(unit: &str, properties: &Properties) -> KubeletUnit {
    let exit = |name| get::<i32>(properties, name);
    let exit = match (exit("ExecMainCode"), exit("ExecMainStatus")) {
        (Some(EXITED), status) => status.map(UnitExit::Code),
        (Some(code), Some(signal)) if code > EXITED => Some(UnitExit::Signal(match Signal::try_from(signal) {
            Ok(signal) => signal.to_string(),
            Err(_) => format!("signal {signal}"),
        })),
        _ => None,
    };
    let pid = get::<u32>(properties, "MainPID").and_then(|pid| i32::try_from(pid).ok());
    let run: Vec<u8> = get(properties, "InvocationID").unwrap_or_default();
    let has_checked_conditions = get(properties, "ConditionTimestamp").is_some_and(|at: u64| at > 0);
    KubeletUnit {
        unit: unit.to_owned(),
        load_state: text(properties, "LoadState"),
        unit_file_state: text(properties, "UnitFileState"),
        active_state: text(properties, "ActiveState"),
        sub_state: text(properties, "SubState"),
        result: text(properties, "Result"),
        exit,
        restarts: get(properties, "NRestarts").unwrap_or_default(),
        run: run.iter().map(|byte| format!("{byte:02x}")).collect(),
        since: get(properties, "StateChangeTimestamp").and_then(time),
        has_unmet_condition: has_checked_conditions && get(properties, "ConditionResult") == Some(false),
        main_process: pid.filter(|pid| *pid > 0).map(|pid| MainProcess {
            pid,
            ..MainProcess::default()
        }),
        last_error: None,
        journal_unread: None,
    }
}

fn get<T: TryFrom<OwnedValue>>(properties: &Properties, name: &str) -> Option<T> {
    properties.get(name)?.try_clone().ok()?.try_into().ok()
}

fn text(properties: &Properties, name: &str) -> String {
    get(properties, name).unwrap_or_default()
}

/// Microseconds since the epoch; 0 for never.
fn time(microseconds: u64) -> Option<Timestamp> {
    let microseconds = i64::try_from(microseconds).ok().filter(|it| *it > 0)?;
    Timestamp::from_microsecond(microseconds).ok()
}

#[cfg(test)]
mod tests {
    use crate::node::systemd::tests::double::{Behavior, UnitKind, bus};

    #[tokio::test]
    async fn state_of_the_unit_is_read_and_nothing_is_changed() {
        for (kind, details) in [
            (
                UnitKind::Restarting,
                "kubelet.service fails and is restarted each time (7 restarts): exit code 1",
            ),
            (
                UnitKind::Killed,
                "kubelet.service has failed: oom-kill, killed by SIGKILL",
            ),
            (UnitKind::Masked, "kubelet.service is masked"),
            (
                UnitKind::Stopped,
                "kubelet.service is stopped since 2026-01-02 03:04:05 UTC, by a user or a program, or it exited with code 0",
            ),
            (
                UnitKind::Running,
                "kubelet.service runs since 2026-01-02 03:04:05 UTC, main process 42",
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let behaviors: &[Behavior] = Box::leak(Box::new([Behavior::Kubelet(kind)]));
            let (systemd, calls) = bus(dir.path(), behaviors);
            let unit = systemd.kubelet_unit("kubelet.service").await.unwrap().unwrap();
            assert_eq!(unit.details(), details);
            let changes = |call: &String| !matches!(&**call, "Hello" | "Subscribe" | "LoadUnit" | "GetAll");
            assert!(!calls.lock().unwrap().iter().any(changes), "{calls:?}");
        }
    }

    #[tokio::test]
    async fn unit_that_systemd_does_not_know_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let (systemd, _) = bus(dir.path(), &[Behavior::NotLoaded]);
        assert_eq!(systemd.kubelet_unit("kubelet.service").await, Ok(None));
    }
}
