//! systemd, asked over D-Bus: to stop units, and of whom a process is.
//!
//! zbus speaks D-Bus on the runtime that is there anyway. Nothing is connected before something is asked.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use tokio::{sync::Mutex, time::timeout};
use zbus::{
    Connection, MatchRule, Message, MessageStream,
    connection::Builder,
    message::Type,
    zvariant::{DynamicType, OwnedObjectPath, OwnedValue},
};

use super::effects::Outcome;
use crate::model::foreign::ForeignText;

const SERVICE: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// Nothing of that name is loaded, or not any more.
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// What is asked for is answered at once.
const LIMIT: Duration = Duration::from_secs(30);
/// Whoever listens lets others in at once.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A client of systemd; all clones share one connection.
#[derive(Debug, Clone, Default)]
pub struct Systemd {
    /// Address of the message bus, where it is not the system's.
    bus: Option<Arc<str>>,
    connection: Arc<Mutex<Option<Connection>>>,
}

/// What becomes of another job that somebody has asked for, and that has not come to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuedJob {
    /// This one replaces it.
    Replace,
    /// It stays, and this one is an error.
    Keep,
}

// === impl Systemd ===

impl Systemd {
    /// That of this machine.
    pub fn of_host() -> Self {
        Self::default()
    }

    /// One behind the bus at this address.
    pub fn at(bus: &str) -> Self {
        Self {
            bus: Some(bus.into()),
            ..Self::default()
        }
    }

    /// Its version; for `check`.
    pub async fn version(&self) -> Result<String, String> {
        self.in_time(async {
            let version = property(&self.connection().await?, OBJECT, MANAGER, "Version").await?;
            Ok(String::try_from(version)?)
        })
        .await
    }

    /// The service whose main process this is, if it is one of a service.
    pub async fn service_of_process(&self, pid: i32) -> Result<Option<String>, String> {
        self.in_time(async {
            let connection = self.connection().await?;
            let pid = u32::try_from(pid).unwrap_or_default();
            let unit: OwnedObjectPath = match call(&connection, "GetUnitByPID", &(pid,)).await {
                Ok(answer) => answer.body().deserialize()?,
                Err(zbus::Error::MethodError(..)) => return Ok(None),
                Err(error) => return Err(error),
            };
            let interface = |name: &str| format!("org.freedesktop.systemd1.{name}");
            let name: String = property(&connection, &unit, &interface("Unit"), "Id")
                .await?
                .try_into()?;
            if !name.ends_with(".service") {
                return Ok(None);
            }
            let main: u32 = property(&connection, &unit, &interface("Service"), "MainPID")
                .await?
                .try_into()?;
            Ok((main == pid).then_some(name))
        })
        .await
    }

    async fn in_time<T>(&self, asked: impl Future<Output = zbus::Result<T>>) -> Result<T, String> {
        match timeout(LIMIT, asked).await {
            Ok(answer) => answer.map_err(|error| ForeignText::new(&error.to_string()).into()),
            Err(_) => Err(format!("no answer within {LIMIT:?}")),
        }
    }

    /// Stops a unit and waits until that is done, for as long as it takes. One that is not loaded is stopped. Once more where
    /// the connection broke: the bus may have been started anew since it was used last.
    pub async fn stop_unit(&self, unit: &str, queued: QueuedJob) -> zbus::Result<Outcome> {
        match stop_over(&self.connection().await?, unit, queued).await {
            Err(error) if !is_answer(&error) => {
                self.disconnect().await;
                stop_over(&self.connection().await?, unit, queued).await
            }
            result => result,
        }
    }

    /// Whatever has become of the connection: the next question begins anew.
    pub async fn disconnect(&self) {
        self.connection.lock().await.take();
    }

    async fn connection(&self) -> zbus::Result<Connection> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let bus = match &self.bus {
            None => Builder::system()?,
            Some(address) => Builder::address(&**address)?,
        };
        let new = timeout(CONNECT_LIMIT, bus.build())
            .await
            .unwrap_or_else(|_| Err(zbus::Error::Failure(format!("no answer within {CONNECT_LIMIT:?}"))))?;
        // It tells of jobs only if somebody wants to hear of them.
        call(&new, "Subscribe", &()).await?;
        *kept = Some(new.clone());
        Ok(new)
    }
}

/// Whether it was said by systemd, or by the bus on its behalf: the connection is a good one.
fn is_answer(error: &zbus::Error) -> bool {
    matches!(error, zbus::Error::MethodError(..) | zbus::Error::FDO(_))
}

/// Asks for the stop of a unit and waits for the end of that job.
async fn stop_over(connection: &Connection, unit: &str, queued: QueuedJob) -> zbus::Result<Outcome> {
    // Any slice can be loaded, also one that is gone: its name says all.
    match call(connection, "GetUnit", &(unit,)).await {
        Ok(_) => {}
        Err(zbus::Error::MethodError(name, ..)) if name == NO_SUCH_UNIT => return Ok(Outcome::Nothing),
        Err(error) => return Err(error),
    }
    // Before the question, so that an end that comes at once is heard.
    let ends = MatchRule::builder()
        .msg_type(Type::Signal)
        .sender(SERVICE)?
        .interface(MANAGER)?
        .member("JobRemoved")?
        .arg(2, unit)?
        .build();
    let mut ends = MessageStream::for_match_rule(ends, connection, None).await?;
    let mode = match queued {
        QueuedJob::Replace => "replace",
        QueuedJob::Keep => "fail",
    };
    let job = call(connection, "StopUnit", &(unit, mode)).await?;
    let job: OwnedObjectPath = job.body().deserialize()?;
    loop {
        let end = match ends.next().await {
            Some(end) => end?,
            None => return Err(zbus::Error::Failure("the connection has ended".to_owned())),
        };
        let (_, ended, _, result): (u32, OwnedObjectPath, String, String) = end.body().deserialize()?;
        if ended == job {
            if result != "done" {
                // What is left shows when its directories are removed.
                tracing::warn!(unit, result, "systemd has not stopped a unit well");
            }
            break;
        }
    }
    // One that has failed stays loaded without that. It is gone if it has not.
    match call(connection, "ResetFailedUnit", &(unit,)).await {
        Err(error) if !is_answer(&error) => Err(error),
        Ok(_) | Err(_) => Ok(Outcome::Done),
    }
}

async fn call<B>(connection: &Connection, method: &str, arguments: &B) -> zbus::Result<Message>
where
    B: serde::Serialize + DynamicType,
{
    connection
        .call_method(Some(SERVICE), OBJECT, Some(MANAGER), method, arguments)
        .await
}

async fn property(connection: &Connection, path: &str, interface: &str, name: &str) -> zbus::Result<OwnedValue> {
    let which = (interface, name);
    let answer = connection.call_method(Some(SERVICE), path, Some(PROPERTIES), "Get", &which);
    answer.await?.body().deserialize()
}

#[cfg(test)]
pub(crate) mod double;
