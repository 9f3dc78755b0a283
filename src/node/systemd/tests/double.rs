//! A private bus with a fake systemd, for tests.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex},
};

use futures::StreamExt as _;
use tokio::net::{UnixListener, UnixStream};
use zbus::{
    Guid, MessageStream,
    connection::Builder,
    zvariant::{ObjectPath, Value},
};

use crate::node::systemd::{ListedUnit, MANAGER, NO_SUCH_UNIT, OBJECT, Systemd};

const JOB: &str = "/org/freedesktop/systemd1/job/7";
const DESTRUCTIVE: &str = "org.freedesktop.systemd1.TransactionIsDestructive";
const UNIT: &str = "/org/freedesktop/systemd1/unit/its";

/// Behavior of the fake systemd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behavior {
    /// As the real one.
    Succeeds,
    /// The job fails.
    Fails,
    /// No unit is loaded.
    NotLoaded,
    /// The job does not finish.
    Hangs,
    /// The connection closes at the first call.
    Disconnects,
    /// Every process belongs to the unit with this name and main PID.
    Runs(&'static str, u32),
    /// Like `Runs`, while a restart of the unit is queued.
    Restarts(&'static str, u32),
    /// The unit with this name waits for its next start after the exit of this main process.
    AutoRestarts(&'static str, u32),
    /// Answers for the kubelet's unit in this state.
    Kubelet(UnitKind),
}

/// A state of the kubelet's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitKind {
    /// Its program exits with code 1, and is restarted.
    Restarting,
    /// The kernel has killed it.
    Killed,
    Masked,
    Stopped,
    Running,
}

/// Names of the called methods.
pub type Calls = Arc<Mutex<Vec<String>>>;

/// A bus whose connections behave as listed; the last behavior applies to all further ones.
pub fn bus(dir: &Path, behaviors: &'static [Behavior]) -> (Systemd, Calls) {
    let calls = Calls::default();
    let listener = UnixListener::bind(dir.join("bus")).unwrap();
    let recorded = calls.clone();
    tokio::spawn(async move {
        for nth in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            let behavior = behaviors[nth.min(behaviors.len() - 1)];
            tokio::spawn(serve(stream, behavior, recorded.clone()));
        }
    });
    (at_bus(&format!("unix:path={}", dir.join("bus").display())), calls)
}

/// A client that connects to the bus at this address.
pub fn at_bus(bus: &str) -> Systemd {
    Systemd {
        bus: Some(bus.into()),
        ..Systemd::default()
    }
}

async fn serve(stream: UnixStream, behavior: Behavior, calls: Calls) -> zbus::Result<()> {
    let bus = Builder::unix_stream(stream)
        .server(Guid::generate())?
        .p2p()
        .build()
        .await?;
    let mut messages = MessageStream::from(&bus);
    while let Some(call) = messages.next().await {
        let call = call?;
        let header = call.header();
        let member = header.member().map(ToString::to_string).unwrap_or_default();
        calls.lock().unwrap().push(member.clone());
        match (member.as_str(), behavior) {
            ("Hello", _) => bus.reply(&header, &":1.7").await?,
            ("GetUnit", Behavior::Disconnects) => return bus.close().await,
            ("GetUnit", Behavior::NotLoaded) => bus.reply_error(&header, NO_SUCH_UNIT, &"no").await?,
            ("GetUnit" | "LoadUnit", _) => bus.reply(&header, &ObjectPath::try_from(UNIT)?).await?,
            ("Get", Behavior::NotLoaded) => bus.reply(&header, &Value::from("not-found")).await?,
            ("GetAll", Behavior::NotLoaded) => {
                bus.reply(&header, &HashMap::from([("LoadState", Value::from("not-found"))]))
                    .await?;
            }
            ("GetAll", Behavior::Kubelet(kind)) => {
                let interface: String = call.body().deserialize()?;
                bus.reply(&header, &unit_properties(kind, interface.ends_with(".Service")))
                    .await?;
            }
            ("GetUnitByPID", Behavior::Runs(..) | Behavior::Restarts(..)) => {
                bus.reply(&header, &ObjectPath::try_from(UNIT)?).await?;
            }
            ("GetUnitByPID", _) => bus.reply_error(&header, NO_SUCH_UNIT, &"no unit").await?,
            ("ListUnitsFiltered", Behavior::AutoRestarts(name, _)) => {
                let (unit, none) = (ObjectPath::try_from(UNIT)?, ObjectPath::try_from("/")?);
                let listed = (
                    name,
                    "",
                    "loaded",
                    "activating",
                    "auto-restart",
                    "",
                    unit,
                    0u32,
                    "",
                    none,
                );
                bus.reply(&header, &vec![listed]).await?;
            }
            ("ListUnitsFiltered", _) => {
                let none: Vec<ListedUnit> = Vec::new();
                bus.reply(&header, &none).await?;
            }
            ("Get", Behavior::AutoRestarts(_, main)) => bus.reply(&header, &Value::from(main)).await?,
            ("Get", Behavior::Runs(name, main) | Behavior::Restarts(name, main)) => {
                let (_, property): (String, String) = call.body().deserialize()?;
                let value = if property == "Id" {
                    Value::from(name)
                } else {
                    Value::from(main)
                };
                bus.reply(&header, &value).await?;
            }
            ("StopUnit", Behavior::Restarts(..)) if call.body().deserialize::<(String, String)>()?.1 == "fail" => {
                bus.reply_error(&header, DESTRUCTIVE, &"its restart is queued").await?;
            }
            ("StopUnit", behavior) => {
                let job = ObjectPath::try_from(JOB)?;
                let result = if behavior == Behavior::Fails { "timeout" } else { "done" };
                let (unit, _): (String, String) = call.body().deserialize()?;
                if behavior != Behavior::Hangs {
                    // The signal may come before the answer.
                    let end = (7u32, &job, unit, result);
                    bus.emit_signal(None::<&str>, OBJECT, MANAGER, "JobRemoved", &end)
                        .await?;
                }
                bus.reply(&header, &job).await?;
            }
            ("ResetFailedUnit", _) => bus.reply_error(&header, NO_SUCH_UNIT, &"not failed").await?,
            _ => bus.reply(&header, &()).await?,
        }
    }
    Ok(())
}

/// Properties of the kubelet's unit, as systemd 252 shows them.
fn unit_properties(kind: UnitKind, is_service: bool) -> HashMap<&'static str, Value<'static>> {
    let (load, active, sub) = match kind {
        UnitKind::Restarting => ("loaded", "activating", "auto-restart"),
        UnitKind::Killed => ("loaded", "failed", "failed"),
        UnitKind::Masked => ("masked", "inactive", "dead"),
        UnitKind::Stopped => ("loaded", "inactive", "dead"),
        UnitKind::Running => ("loaded", "active", "running"),
    };
    let (result, code, status, restarts, pid) = match kind {
        UnitKind::Restarting => ("exit-code", 1i32, 1i32, 7u32, 0u32),
        UnitKind::Killed => ("oom-kill", 2, 9, 0, 0),
        UnitKind::Masked => ("success", 0, 0, 0, 0),
        UnitKind::Stopped => ("success", 1, 0, 0, 0),
        UnitKind::Running => ("success", 0, 0, 0, 42),
    };
    if is_service {
        return HashMap::from([
            ("Result", Value::from(result)),
            ("ExecMainCode", Value::from(code)),
            ("ExecMainStatus", Value::from(status)),
            ("NRestarts", Value::from(restarts)),
            ("MainPID", Value::from(pid)),
        ]);
    }
    HashMap::from([
        ("InvocationID", Value::from(vec![0xb2u8])),
        ("LoadState", Value::from(load)),
        ("UnitFileState", Value::from("enabled")),
        ("ActiveState", Value::from(active)),
        ("SubState", Value::from(sub)),
        // 2026-01-02 03:04:05 UTC.
        ("StateChangeTimestamp", Value::from(1_767_323_045_000_000u64)),
        ("ConditionTimestamp", Value::from(1u64)),
        ("ConditionResult", Value::from(true)),
    ])
}
