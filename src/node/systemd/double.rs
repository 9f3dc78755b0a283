//! A bus of a test's own, behind which a systemd does as it is told.

use std::{
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

use super::{MANAGER, NO_SUCH_UNIT, OBJECT, Systemd};

const JOB: &str = "/org/freedesktop/systemd1/job/7";
const DESTRUCTIVE: &str = "org.freedesktop.systemd1.TransactionIsDestructive";
const UNIT: &str = "/org/freedesktop/systemd1/unit/its";

/// How it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behavior {
    /// As it ought to.
    Well,
    /// The job ends with another result.
    Fails,
    /// It knows of no such unit.
    KnowsNothing,
    /// The job does not end.
    Hangs,
    /// The connection ends at the first question.
    HangsUp,
    /// Every process is of the unit with this name, whose main process is this one.
    Runs(&'static str, u32),
    /// The same, and somebody has asked for the unit's restart, which has not come to its end.
    Restarts(&'static str, u32),
}

/// What it was asked, by the names of methods.
pub type Asked = Arc<Mutex<Vec<String>>>;

/// A bus at which every connection is served so; the last way serves all further ones.
pub fn bus(dir: &Path, ways: &'static [Behavior]) -> (Systemd, Asked) {
    let asked = Asked::default();
    let listener = UnixListener::bind(dir.join("bus")).unwrap();
    let told = asked.clone();
    tokio::spawn(async move {
        for nth in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            let does = ways[nth.min(ways.len() - 1)];
            tokio::spawn(serve(stream, does, told.clone()));
        }
    });
    let systemd = Systemd::at(&format!("unix:path={}", dir.join("bus").display()));
    (systemd, asked)
}

async fn serve(stream: UnixStream, does: Behavior, asked: Asked) -> zbus::Result<()> {
    let bus = Builder::unix_stream(stream)
        .server(Guid::generate())?
        .p2p()
        .build()
        .await?;
    let mut calls = MessageStream::from(&bus);
    while let Some(call) = calls.next().await {
        let call = call?;
        let header = call.header();
        let member = header.member().map(ToString::to_string).unwrap_or_default();
        asked.lock().unwrap().push(member.clone());
        match (member.as_str(), does) {
            ("Hello", _) => bus.reply(&header, &":1.7").await?,
            ("GetUnit", Behavior::HangsUp) => return bus.close().await,
            ("GetUnit", Behavior::KnowsNothing) => bus.reply_error(&header, NO_SUCH_UNIT, &"no").await?,
            ("GetUnitByPID", Behavior::Runs(..) | Behavior::Restarts(..)) => {
                bus.reply(&header, &ObjectPath::try_from(UNIT)?).await?;
            }
            ("GetUnitByPID", _) => bus.reply_error(&header, NO_SUCH_UNIT, &"no unit").await?,
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
            ("StopUnit", does) => {
                let job = ObjectPath::try_from(JOB)?;
                let result = if does == Behavior::Fails { "timeout" } else { "done" };
                let (unit, _): (String, String) = call.body().deserialize()?;
                if does != Behavior::Hangs {
                    // Before the answer, as it may come.
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
